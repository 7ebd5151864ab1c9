// Package cli is the one command, skep: it reads flags, calls the packages that do
// the work, and prints what they return as a table or as JSON.
//
// Invariants:
//
//   - Standard output carries the result and nothing else; progress, logs and errors
//     go to standard error. With --json the result, an error too, is one JSON document.
//   - Bad input is told before anything is made or changed, and ends with exit code 2;
//     what went wrong while working, and a result that must not be, with 1; an
//     interrupt with 130 and the result of what was done until then.
//   - Every result that comes from a store says which backend moved its bytes, why not
//     a better one, and whether a device was simulated.
//   - Every JSON field is in docs/cli.md; a test compares the two.
package cli
