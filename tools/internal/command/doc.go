// Package command is what skep's commands share: the root with its flags, logging, results as text or as
// JSON, errors with what to do next, and exit codes. Package cli makes skep of it, and package lab makes
// skep-bench of it.
//
// A [Program] is one command: its name, what its help says, and a function that lists its subcommands. An
// [App] is one run of it, which the subcommands print to and log to.
//
// Invariants:
//
//   - Standard output carries the result and nothing else; progress, logs and errors
//     go to standard error. With --json the result, an error too, is one JSON document.
//   - Bad input is told before anything is made or changed, and ends with exit code 2; an
//     interrupt with 130 and the result of what was done until then. CodeOf has the code of every
//     other error, the same in all commands, and docs/reference/cli.md the table.
//   - A result that could not be printed to its end is a failure, whatever else went well.
package command
