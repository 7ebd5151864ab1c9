// Package consensus has the nodes of a cluster agree on its map. The map changes by commands, which raft
// (github.com/hashicorp/raft) puts in one order for all nodes; every node carries them out one after another, and so
// has the same maps with the same epochs.
//
// `skep serve` has a Member where its store's directory is a node's (tools/internal/member). Namespaces can be agreed on
// here; servers note so which tenants are encrypted (clustermap.Sealing), and nothing else yet.
//
//	Registry, Member   the map, changes that are proposed, callbacks
//	Status             who leads, who is behind
//
// # How it works
//
// A command that is proposed on any node goes to the leader, which answers once most voters have it on a drive and it
// was carried out; the map that is returned to the proposer has it. What is refused (a name that exists, a weight out
// of bounds) has its place in the log, too, and changes nothing.
//
//	log.go      raft's log and values in Pebble: written synchronously, 4 MiB of memory
//	shield.go   what Pebble does not survive
//	fsm.go      the map, and its snapshots: files in the node's directory
//	peers.go    connections between nodes
//	member.go   opening, proposing
//	steer.go    who votes
//	heard.go    who has heard of a map
//	lease.go    leases of nodes: who is heard, and that a silent node is down
//	left.go     who does no more
//	stopped.go  a node that does not run: what it knows, recovering a cluster with it
//	word.go     hearing that the cluster was recovered without this node
//	reached.go  which node reaches another one
//	status.go   how the cluster is, as one node sees it
//	news.go     waiting for a change
//	said.go     what raft tells, for the log
//
// A cluster is founded by one node alone, with the whole map. Its leader makes the other nodes of the map members as
// soon as they run: three of them vote, from five nodes up five, and the rest only hears. A node votes once it has the
// log. With two nodes only one votes: the loss of the other stops nothing, and its own loss stops changes. Nodes that
// the map loses are taken out.
//
// A cluster has an identity, which was drawn when it was founded, and a node keeps the one that it is given
// (Options.Cluster), or that of the first leader that calls it. Connections say it, and which node they are for: what
// reaches another one is cut. They are neither encrypted nor authenticated by this package: Options.Dial and
// Options.Listener are the places for that.
//
// A leader that does not hear from most voters for 250 ms leads no more. Voters that do not hear from a leader for
// 500 to 1,000 ms elect one, once they know that others would vote for it.
//
// # What fails
//
// Where less than 16 MiB are free beside raft's log, the node takes no changes, and a leader leads no more; Status says
// so. It catches up by itself once there is space. Where Pebble cannot write, the node takes no part any more and keeps
// the map that it knew; Failed says so. Its directory stays locked until the process ends.
//
// Where the newest snapshot cannot be read, a node starts with the one before: entries since that are kept. It sets the
// newest aside, in the directory `damaged`. Where an entry, or every snapshot, is damaged or of another version, or the
// log does not reach a snapshot that cannot be read, it does not start, and says which.
//
// A voter whose directory is lost, or replaced by an older copy, has forgotten what it promised: together with the loss
// of another voter, agreed changes can be lost. It is to be removed and added under a new name, which gives it another
// id.
//
// Where most voters are lost for good, Recover has a node that is left go on without them, by the newest map that its
// log makes: what only the others had agreed on is lost. The cluster is another one then, and Adopt takes other nodes
// there that are left. A node of the old one that comes back asks others when it starts, and is told by one of the new
// one that it reaches. It proposes nothing then, even where most voters of the old one are back.
//
// All nodes of a cluster run versions that know the same commands.
//
// # Goroutines
//
// Close waits for all of them: raft's, four of a Member, up to 32 while others are asked, one for each connection, one
// for each change that raft was asked for and has not answered yet. One call of Pebble runs on one of its own. Where
// Pebble fails, what raft and Pebble never answer stays until the process ends.
package consensus
