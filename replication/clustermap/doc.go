// Package clustermap is the map of a cluster: which nodes there are, where they listen, how much each of them gets, and
// what placement is computed from. It is pure: it reads and writes bytes, and does no I/O.
//
// A map is agreed on by the nodes of a cluster (package consensus), or it is a file that an operator writes, YAML or
// JSON, the same for every node and every client:
//
//	epoch: 1                                 # raised by one whenever the file changes
//	seed: 6c0f3a5e9b1d4827a3c5e7f90b2d4861   # 32 hexadecimal digits; blocks are placed by it
//	group: 16                                # blocks of a chain that stay together
//	nodes:
//	  - {id: 1, name: a, addr: "10.0.0.1:7420", weight: 1, domain: [rack-1]}
//	  - {id: 2, name: b, addr: "10.0.0.2:7420", weight: 1, domain: [rack-2]}
//
// Two maps place all blocks on the same nodes when they have the same seed, group and replicas, and nodes of the same
// ids, weights and states; where there are replicas, of the same domains, too. Names and addresses may change at any
// time, under a higher epoch. A map that differs in the rest places some blocks elsewhere: what was stored under the
// old one is a miss under the new one until the node that has it has sent it there.
package clustermap
