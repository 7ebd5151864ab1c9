// Package member is a store's directory as that of a node of a cluster that agrees on its map: who the node is, the map
// that it knew last, and what it keeps of the agreement (package replication/consensus).
//
//	DIR/cluster/node.json   the node's number, name and addresses, and which store it has
//	DIR/cluster/map.json    the newest map that it knew to be agreed on: what it serves by before it hears from others
//	DIR/cluster/join.json   while it joins: the cluster that has agreed that it had no node of that name before
//	DIR/cluster/log, …      of package consensus
//
// Where most voters are lost for good, Recover has a stopped node go on without them, and Rejoin another one follow it.
package member
