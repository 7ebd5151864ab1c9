// Command libskep is skep for programs in C, and in whatever can call C: a library with the
// functions of skep.h. Built by
//
//	tools/libskep/build.sh DIR                                      or, by go build -buildmode=c-archive, libskep.a
//
// A store is the embedded engine or a server, with simulated GPU memory in front where asked.
// Without a C compiler (CGO_ENABLED=0) the package is an empty program.
package main

func main() {}
