// Package replication makes one Store of many nodes, each of which is a Store: a server that a wire client speaks to,
// as a rule. Each block is on one node, or on as many as the map says replicas, and nodes repair them.
//
//	Connect      a Store of a server, and of its whole cluster where it is a node: by one address
//	Dial, Open   a Store of a cluster's servers: by the address of one, or by the map
//	New          the same over any Stores
//	clustermap   the map: nodes, weights, seed, epoch; a file
//	placement    which node has a block; pure, by integers
//
// docs/explanation/cluster.md tells what a cluster is, with a picture.
//
// # How it works
//
// Blocks of a chain go in groups, and a group goes to the node of its first block. On its node it is a chain of its
// own, which begins at depth 0.
//
//	lookup    one call a node for all groups that it has, the nodes at once; the longest prefix
//	          over the groups. One lease is a lease of each node (lookup.go, lease.go)
//	put       cut where the group changes; a node's runs one after another, the nodes at once
//	          (put.go, package known)
//	restore   a plan of this Store's own: runs of up to 8 MiB, two a node at a time, each into
//	          its part of the caller's destination. Claims, priorities and stops are of what
//	          has not been begun (restore.go, session.go, load.go). Chains with a Compute are planned
//	          by the two-pointer scheduler (planned.go, package sched). Where a chain's first key begins
//	          none, it is a part of one: every node is asked by Want which of its keys it has
//	events    one follower a node, one ring, numbers of this Store's own (package merge)
//
// Calls say the epoch of the map that they are by. A node whose map is newer does nothing and says so: it is asked
// for the map, and the call is made once more by that (learn.go). Nodes keep their places for as long as a Store is
// open, so what was begun by an older map goes on by it.
//
// # Replicas
//
// A namespace's Copies are over the drives of a node, and each node keeps them. Replicas are over nodes, and the map
// has them (Map.Replicas, Map.Acks), so that all clients agree on where blocks are. A group goes to the nodes that
// draw lowest for its slot, in different domains as far as there are such (replicas.go).
//
//	put       to all of a group's nodes at once, all waited for; acknowledged where Acks of them have it: by default
//	          all where the namespace is durable, else one. With fewer it is declined, and may be found yet
//	lookup    each group at the one of its nodes that owes this client least (package owed) and is not slow; what it
//	          lacks, or is late with, at the next one. Who has it first counts, and a lease that comes late is given back
//	          (ahead.go, package pace). Where it was found it is restored from
//	restore   what a node does not give, or is late with, is loaded from another one into the same place, when the first
//	          session surely writes nothing there any more; else it is a miss (retry.go, late.go)
//	delete    at every node; a block counts once
//
// A cluster of one node is that node: calls go to its Store as they are (calls.go). So do calls by Connect before there
// is a map: to a server that turns out to be a node they are not sent, and are made again by its map (wire.WithEpoch).
//
// A node that is away (Unavailable, Overloaded, Closed) is a miss, and declines what it should get; so does one that
// lacks the key of a tenant that others encrypt (Denied; package sealed). What has to reach every node, a deletion, a
// purge, a flush, a renewal, says which one it did not reach.
//
// # Repair
//
// Each node's server has a Store of the whole cluster, of which one node is its own. Store.Repair goes through the
// blocks of chains of that node, a page at a time; asks the other nodes that should have them, by Want; and puts
// there what is wanted (repair.go). That moves blocks to where a newer map has them, too. Nothing is deleted by it.
//
// A copy must not outlive a deletion, which goes to all nodes at once and may be at the receiver before the copy and at
// the sender after it. The sender's own Store is behind a Keeper: it remembers for a minute what went where, and a
// deletion that comes to it waits for copies under way and deletes them where they went, before it returns (package
// keeper); one that comes meanwhile waits for that. Deletions that a Keeper makes are of what it remembers, and forgets
// then, and wait for no others (wire/recall), so that two of them do not call each other for ever.
//
// # A node that is down
//
// The map may say that a node is down (clustermap.Down), where the nodes agree on it: an operator said so, or it was
// silent for too long (clustermap.Silence). Calls do not go to it. The others, each behind a Fence (package fence),
// remember what is deleted: in the map, so by most voters, and as whole namespaces, at most 32, 8 of a tenant. The node
// serves nothing after its start before it has asked them, has lost these, and is up. Keys of durable namespaces are
// not deleted without it. A deletion that goes by a node which is away, and is not said to be down, is an error.
//
// # What it lacks
//
// With several nodes it keeps the contract of package skep, but for this. What can be named is refused as
// Unsupported, or skipped by name in the contract's tests.
//
//   - PutSidecar, Sidecar, Register, DeviceCount, DeviceOf, and chains with a Compute.Boundary are Unsupported.
//   - A cap on what a tenant has leased or pinned is each node's own: nobody counts over all of them, and where one
//     node refuses a pin the others have pinned.
//   - Events of blocks on several nodes come in no order, so a chain's commits may be told of out of its order. An
//     event of a group's first block has the parent and depth that this Store knows from its own puts and lookups,
//     and none where it does not, or where the block is salted. Events of drives are left out.
//   - A cluster that grows from one node to two hides what it had behind the chains' first groups, its leases are over,
//     and streams of events that were opened before tell of the first node only.
//   - The numbers of namespaces are this Store's own. They do not outlive it.
//   - Keys that stand alone have one copy, whatever the map says: they are written over, and two nodes could not agree
//     on the last without versions. Keys that are not written over are better put as chains of one block each.
//   - A node that was away while a delete or a purge went by has its copy yet, unless it was said to be down: the call
//     named the node, and is to be made again.
//   - Two writers of different bytes under one chained key may each be the first at another node. Who puts the other's
//     second is told Differs; a reader gets the bytes of one of them. Keys are of the content, so nobody should.
//   - Stats and CountBlocks count copies as blocks, ListKeys tells of each, and an event is told of for each copy.
//   - A lease is of one copy. The other one may be evicted, and a renewal names the node of the leased one where that
//     is away.
//   - A put, a deletion and a renewal wait for a node that is slow, and so does a lookup, for half a second, for what
//     another one lacks.
//   - A lookup that begins with a later group's first block finds it, as if the chain began there.
//   - A block that is put without its group being known, by a Store that neither put nor looked up its parent lately,
//     and without naming its ancestors, is loose: placed by its own key. One that is put so in place of a deleted one
//     does not show what followed that one before it is put again.
package replication
