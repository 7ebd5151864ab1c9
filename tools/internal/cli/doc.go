// Package cli is the command skep: it reads flags, calls the packages that do
// the work, and prints what they return as a table or as JSON. What all commands
// share is in package command.
//
// Invariants, besides those of package command:
//
//   - Every result that comes from a store says which backend moved its bytes, why not
//     a better one, and whether a device was simulated.
//   - Every JSON field is in docs/reference/cli-json.md; a test compares the two.
package cli
