// Package size answers what hardware a fleet needs for its KV cache, and whether loading from it wins over computing.
// It is arithmetic over what a user knows (a model, its traffic, a drive's data sheet) and does no I/O. Its constants
// are those of docs/howto/size.md, where they are explained.
package size
