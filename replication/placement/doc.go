// Package placement says which node of a cluster has a block. It is pure, and it computes with integers only: Go may
// fuse a multiplication and an addition of floating-point numbers, and nodes of two architectures would disagree.
//
//	anchor   the first block of a group: blocks of a chain go G at a time, and the group goes where its anchor does
//	slot     one of 65,536: the top 16 bits of SipHash(seed, namespace, stored key of the anchor)
//	node     the one whose draw for the slot is lowest: nlog2(mix(slot ⊕ ID)) × 2²⁴ / tuned weight
//
// nlog2 is −log₂ of a fraction, so a node's draws are exponentially distributed with its weight as the rate, and each
// node is the lowest for a share of the slots that is its weight's (weighted rendezvous hashing). A node that is added
// takes slots from all others and none moves between those; one that is taken out gives its slots to all others.
package placement
