// Package storm has the random test of a whole cluster: three nodes and three clients, and between them a network that
// delays, cuts and loses. All that is drawn comes from a seed, which is printed.
//
//	c0 c1 c2        replication.Connect, the wire's clients
//	 │  │  │
//	═╪══╪══╪═══     network (net_test.go): delay, one way and both ways cut, connections cut within a frame
//	 │  │  │
//	n1 n2 n3        wire/server ─ fence ─ keeper ─ Store; consensus, repair: as skep serve puts them together
//	 │  │  │
//	 d  d  d        disk (disk_test.go): what stays after a crash, and what was not synced does not
//
// # What is real
//
// The code of clients, servers, agreement (raft on Pebble, in a file system in memory that forgets what was not synced),
// fence, keeper, repair and placement. The nodes' own Stores are memstores, whose changes are written down, so that a
// process can end and another one begin with what was kept. How serve decides when to repair is not here: a node looks
// every five seconds.
//
// Time is a bubble's (testing/synctest): minutes pass within a second. Goroutines run as they please, so one seed draws
// the same faults each time, and not each time the same interleaving: a seed that fails may need some tries.
//
// # What fails
//
//	machines     crash, with the power or without; stop; start; lose their drives, one at a time until all is whole;
//	             are gone for good, removed and added again, while an old copy of one's directory is served by mistake;
//	             two of three are lost, and the third goes on alone (consensus.Recover)
//	network      one machine, some, or one direction is cut off; it is slow; connections are cut
//	the map      weights; a node is out, or down because an operator or its silence says so
//	clients      begin anew at another node; put, read and delete chains, salted ones, and keys that stand alone; purge
//	             salts and namespaces; delete namespaces, and open them again
//
// # Which promise is judged by which book
//
//	books (books_test.go)  of each block: acknowledged or not, and whether it may be there
//	  at any time          no wrong byte; nothing found whose deletion was acknowledged; no call outlives its time
//	  when all is calm     what was acknowledged as durable is found and read by every client, and each node that the map
//	                       says has a copy; nothing deleted is on any drive; nothing is refused
//	contest_test.go        of three who put other bytes under one key at once, the first wins
//	maps (maps_test.go)    of each epoch one map, on whichever node; a change has no lower epoch than those answered before
//	                       it began. Epochs are the order in which changes took place, so nothing has to be searched for
//	                       to see that the map is linearizable
//
// What was asked and not answered may be done until the network has lost it: until then the books hold either for
// possible. With one replica only what was put while all was well counts as acknowledged: what follows on blocks of a
// node that is down goes elsewhere, and repair leaves it out when that node is back. A node that has found another one
// away may say so for a while after that is back: calm begins when each client has reached every node.
//
// # Running it
//
//	SKEP_STORM_SEED=7 go test ./replication/storm -run TestStorm      that seed
//	SKEP_STORM_SEEDS=500 go test ./replication/storm -run TestStorm   so many, from 1 or from SKEP_STORM_SEED on
//
// SKEP_STORM_LOG=1 has nodes and clients log what they do.
package storm
