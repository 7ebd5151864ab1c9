// Command mutants proves that the test suite can fail. It breaks shipped code one line
// at a time, as mutants.txt says, and requires that the tests named there notice:
//
//	go run ./tools/mutants                 all of them, as `make mutants` does
//	go run ./tools/mutants -run flush      those whose name or class matches
//	go run ./tools/mutants -check          only that the list fits the source
//	go run ./tools/mutants -done FILE      goes on where a run with this FILE was ended
//
// No file of the repository is touched: a mutant is compiled with go test's -overlay.
//
// # The list
//
// One mutant is a paragraph of mutants.txt:
//
//	name class path/of/file.go
//	in the function whose declaration line holds this text    (optional)
//	test [ENV=value …] package [-run pattern]                  (one or more)
//	- the line as it is, without indentation
//	+ the line in its place
//
// An old line that ends in … stands for any that begins like it. It must be there exactly once, in the file or after the line that opens the
// named function and before the next function. A list that does not fit the source is
// an error, as is a mutant that does not compile: neither may pass for one that was
// noticed.
//
// # Outcomes
//
// First every test command runs on the code as it is and must pass. Then each mutant's
// commands run in order until one fails: the mutant is dead. One that runs out of time
// is dead too, and said so. A survivor makes the exit status 1.
//
// With -done each outcome is written to FILE at once, as a line of name and outcome, and mutants that FILE calls dead
// are not run. It knows names only: a FILE is of one state of the code, and is deleted when that has changed.
package main
