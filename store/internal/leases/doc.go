// Package leases is what a store has promised to its callers: leases of lookups, and pins.
//
// The index protects blocks, one promise at a time, and forgets a promise with its block. A Table maps the leases
// that callers hold to the index's: one for a chain's leading blocks, several for single keys or many runs. Pins
// counts each pinned block once, whoever pins it. Both end by the store's clock, and neither grows with blocks that
// were promised and deleted: where there are many rows, those of which the index has nothing left are sifted out.
package leases
