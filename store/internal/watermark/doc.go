// Package watermark owns the numbers of a store, and the root row of its catalog that keeps them.
//
//   - A sequence number stands for each change. None is given out twice, over restarts neither: an
//     open goes on above the number of the root row, and Pass skips what was met besides.
//   - The durable watermark: everything numbered at or below it is on the drives. Advance moves it,
//     with a flush in between; an unclean open trusts what lies at or below it and verifies the rest.
//   - Numbers of namespaces and instances are given out by who makes namespaces, and kept by SaveNumbers.
//   - Lasting is time over restarts, which the row keeps, too.
//
// The root row is made and committed under one lock: a row made earlier and committed later would
// take back a watermark that others rely on. Nothing that reads the numbers waits for it.
package watermark
