// Package sealed is what a node's own Store is behind so that what one node of a cluster encrypts is in the clear at
// none.
//
// # How a node knows
//
// That a tenant's blocks are encrypted is in the map that the nodes agree on (clustermap.Sealing). Every node that has
// a key for the tenant sees to it that it is there, and nothing takes it out but an operator's word. EveryTenant
// stands for the key of those that have none of their own. It comes in two steps:
//
//	Begins    proposed by the first node that has a key. From here on a node without one takes none of the
//	          tenant's blocks: Denied
//	Sealed    proposed by a node with a key once every node of the map, but for those that are down, has said that
//	          its map has the first step. Only from here on nodes with a key take blocks; until then: Unavailable
//
// So when the first block is encrypted anywhere, there is no node left that would take one in the clear: one that was
// cut off, and serves clients beside it, has kept the second step from being taken. A put under way since before its
// node heard of the first step may end after that. The second step is kept with the map, so a node that starts again
// while others are away need not ask them once more. A node that was not there serves nothing before it has a map as
// new as most voters' (package fence), and one that is said to be down is taken at its word there.
//
// What clients know, or what comes with a copy, would not do: a client has no key and may reach only nodes that have
// none, which would take its blocks though they cannot ask the others.
//
// # What is refused
//
// Every way of writing payload into the Store is: Put, Begin, PutSidecar; so what a repair, a gateway or object storage
// brings is refused as what a client puts. A caller that goes by a map counts copies: its blocks are Declined, and the
// others' copies count. One that names no map is told the tenant and what to do. Reads, lookups and deletions are as
// ever, and so is what the node has in the clear from before.
//
// Nothing is asked on the way of a put: the Gate looks at the map that the node has. Where no tenant is encrypted it
// looks at nothing else.
//
// # What it lacks
//
// A node of a version before this one agrees on what is noted, and keeps it, but declines nothing: it goes on to take
// blocks in the clear without a key. So does one that was removed while it ran, for who reaches it. A node whose map is
// a file agrees with nobody, and is not behind a Gate. A map has room for clustermap.MaxNamespaces such notes, two a
// tenant.
package sealed
