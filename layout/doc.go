// Package layout is the arithmetic of where bytes live and in which order they
// move: pure functions and small values, no I/O, no clock, no goroutine.
//
// # From a block to a device
//
// A block's part is the tensor bytes themselves, in the shape's order (Geometry).
// Granules cut it into what one checksum covers.
//
//	part "kv"   |  layer 0 K   |  layer 0 V   |  layer 1 K   |  layer 1 V   |   [layer][K,V][head][token][dim]
//	granules    |      0       |      1       |      2       |      3       |   one slice each, if 4 to 64 KiB
//
// Stored, a block is its parts one after another, each padded at its end to whole
// pages of 4 KiB. Inside, a part is NOT padded: a layer, and a whole part, is as
// contiguous on the device as in memory, so a device reads straight into contiguous
// memory and no copy is needed. The price is that a granule may begin inside a page:
// reads round outwards, and Read.Skip says by how much.
//
//	stored      |  part "kv"                    .pad|  part "boundary" .pad|
//	units       |   unit 0   |   unit 1   |   unit 2   |   unit 3          |   at most 1 MiB each (UnitFor)
//
// A stripe group is one segment on each of n devices. A row is one cell on each of
// them, as high as the unit of the blocks in it. Unit j goes to the device after unit
// j-1, around the row's end, and every n units to the next row:
//
//	group of 4 devices     dev 0      dev 1      dev 2      dev 3
//	page 0               | header   | header   | header   | header   |
//	page 1               | A.0      | A.1      | B.0      | B.1      |   A: 2 units at (1, 0); B at (1, 2)
//	page 1+u             | C.1      | D.0      | D.1      | C.0      |   C at (1+u, 3), D at (1+u, 1)
//	page 1+2u            | E.3      | E.0      | E.1      | E.2      |   E: 8 units of height v,
//	page 1+2u+v          | E.7      | E.4      | E.5      | E.6      |   at (1+2u, 1)
//	…                    |          |          |          |          |   free
//	last pages           | log      |          | log      | log      |   record headers, downwards
//
// So (group, page, device) and the size say where every byte is: a Location of 64
// bits. Values of up to 3.5 KiB may share a page (Location.Sub).
//
// # A chain
//
// PlanChain checks one chain of a restore against its namespace's shape, for every Store: which chunks it comes in, in
// which order, which bytes of a part each is, and where they belong in the caller's memory or pages (ChainPlan).
//
// # Which device first
//
// Start spreads a chain: over all its blocks, and over any one layer of all its
// blocks, every device holds its even share, within a unit. With 8 units on 8 devices
// and a layer in each, every device still has one layer of every eighth block:
//
//	block     0  1  2  3  4  5  6  7
//	start     0  1  2  3  4  5  6  7        layer 2 is on   2  3  4  5  6  7  0  1
//
// # What holds
//
//   - Every stored byte is in exactly one unit, every part byte in exactly one granule.
//   - Filler never gives a page twice, and Rollback leaves no trace.
//   - A copy's unit is never on the device of the same unit of another copy.
//   - The reads for any range are whole granules rounded to pages, and no others.
//   - UnitFor, Extents, PartOffset, GranulesOf and Location.Pack are part of the stored
//     format: they give the same for the same arguments for ever (TestFormat…).
//     Start, Rotation, Filler and SegmentFor are choices and may change.
//   - A chunk's bytes come to where they belong, and nothing else of its destination is written (TestChainBytes).
//   - Bad arguments give an Invalid error, false, or nothing; never a panic.
package layout
