// Package lab is the command skep-bench: benchmarks beside what bounds them, replays of recorded workloads, and
// emulated engines. It reads flags, calls the packages that measure, and prints what they return as a table or as
// JSON. skep bench hands its arguments on to it. What all commands share is in package command.
//
// Invariants, besides those of package command:
//
//   - Every result that comes from a store says which backend moved its bytes, why not
//     a better one, and whether a device was simulated.
//   - Every JSON field has a comment that says what it means and in which unit: tools/docs makes the schemas of it.
package lab
