// Package naming makes, purges and deletes namespaces, one at a time.
//
// What is purged is told by two numbers that every block carries: its namespace's instance and its salt's tag. New ones
// make everything under the old unreachable at once; Sweep takes it out of the index, and the cleaner drops it from
// the drives without copying.
//
// # Invariants
//
//   - The order is: the catalog, the devices' logs, memory. No block is committed under an instance that the devices do
//     not know.
//   - No number of a namespace, and no instance, is given out twice.
package naming
