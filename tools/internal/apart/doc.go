// Package apart holds no code: its test plays the life of a cluster whose nodes and clients are processes, each on a
// network of its own.
//
//	c0  c1  c2      clients, a process each: replication.Connect; each keeps a book
//	 │   │   │      network namespaces, a pair of virtual Ethernet devices each
//	═╪═══╪═══╪════  a bridge; iptables cuts, one way or both; tc makes a node's link slow
//	 │   │   │
//	 a   b   c      skep serve, a process each: TLS between them, credentials, two copies of each block
//
// Nodes are killed, stopped, started, cut off from each other, from clients or from everybody, one way or both ways,
// and replaced one after the other by another build. In between all is made well again, and repaired, and each client
// looks at what it put and deleted:
//
//   - at any time, no wrong byte, and nothing is found whose deletion was acknowledged
//   - when all is well, each block of a durable namespace that was acknowledged is found and read
//   - at the end, read by clients that know nothing and begin at another node: the same; and when all was deleted, no
//     node has a block
//
// A request that was not answered while something was wrong may be carried out until a while after all is well: the
// network keeps what was sent. Until then the books hold either for possible.
//
// Adversaries play against three nodes of this machine, without networks of their own, beside clients that keep the
// same books (foes_test.go): hostile clients at all ports, a tenant that takes all it can get, clocks that are set and
// nodes that are paused, a node without descriptors or room on its disk. Each is short unless a time is given, and
// prints its seed.
//
// TestApart needs root, ip, iptables and tc, and takes SKEP_APART_ROUNDS rounds (3) of half a minute or more. It
// prints its seed, and SKEP_SEED sets it. SKEP_APART_OTHER names another build of skep: then nodes go from one build
// to the other and back. make apart OTHER=COMMIT builds it.
package apart
