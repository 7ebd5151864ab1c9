// Package lint is the house's rules as tests: what gofmt, vet and staticcheck do not
// know about this repository. There is nothing in it but its tests.
//
//	go test ./tools/lint
//
// The rules:
//
//   - a room imports only what design floors allow (rooms_test.go has the table)
//   - a file of Go has at most 600 lines, and is as gofmt would write it
//   - every package has a doc comment, in doc.go where it has a story to tell
//   - relative links in Markdown resolve, their anchors too, and docs/README.md
//     leads to every page of docs/; lines of manuals have at most 120 columns
//   - make targets and scripts the documents speak of exist
//   - no file names a path of somebody's machine; a test that looks outside the
//     repository skips by name when nothing is there
//   - only the test's goroutine ends a test (goroutines_test.go), and no test goes by
//     the clock (waits_test.go; sleepers_test.go has those that must, with reasons)
//   - who reads the machine's clock, which may be set, is listed with the reason (clock_test.go)
//   - the module an embedder requires has no browser, no Redis client and no CUDA binding in its graph, and
//     the modules beside it have its versions (modules_test.go)
//   - skep, the operators' command, is made of the packages that laboratory_test.go lists, and of nothing that measures
package lint
