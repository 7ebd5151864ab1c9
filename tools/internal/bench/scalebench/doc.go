// Package scalebench is what skep-bench cluster does: clusters of more nodes than there are machines.
//
// The map, its changes, the placement of blocks and who may be down by itself are the product's own code (packages
// clustermap and placement). Blocks are counts: how many groups of a chain lie in each slot is drawn. What nodes send each
// other after a change is what of the new table is not in the old one, and the time that takes is reckoned: each slot is
// sent by the first node that has it yet, and nodes send and receive at the rate of a repair.
package scalebench
