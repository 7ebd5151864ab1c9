// Package commandtest is what the tests of skep's commands share: running a command in the test's own process,
// looking at all of its subcommands, comparing its page in docs/ with its flags and its JSON, playing scripts of
// calls with the outputs they are to have.
package commandtest
