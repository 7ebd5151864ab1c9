// Package cli is the command skep: it reads flags, calls the packages that do
// the work, and prints what they return as a table or as JSON. What all commands
// share is in package command.
//
// Invariants, besides those of package command:
//
//   - Every result that comes from a store says which backend moved its bytes, why not
//     a better one, and whether a device was simulated.
//   - Every JSON field has a comment that says what it means and in which unit: tools/docs makes the schemas of it.
package cli
