// Package elastic is the arithmetic of GPU memory that one model lends to another
// (SwiftCache, arXiv 2606.16135, §3.2 and §3.4): how many blocks a borrower can keep in
// what it was lent, in which steps a border between lender and borrower may move, and who
// may allocate what on which side of it. Pure: no I/O, no clock, no lock.
//
// # Two sides of one arena
//
// An arena is memory cut into units of equal size. A unit holds a whole number of the
// lender's blocks and a whole number of the borrower's (Unit, eq. 6 to 9), so no block lies
// across the border wherever it stands:
//
//	units       0        1        2        3        4        5        6        7
//	         | l l l  | l l .  | . . .  | . . .  | . . .  | . .    | . b    | b b    |
//	         |------------- lender -------------|----------- lent to borrower -------|
//	           allocates lowest first        border              allocates highest first
//
// Both models have the whole arena mapped for as long as it lives. Moving the border is
// therefore a matter of who may allocate: Move changes one number, whatever the number of
// blocks (block-major layout; a layer-major one has to move every block of every layer).
// Blocks in use in units that changed hands stay valid for their owner, which gets no
// others there; the new side gets a unit once the last of them is freed. That is stranding,
// and it is counted. Relocating them is the caller's choice and is counted by the caller: gpu.Store does it for
// blocks that a prompt being computed cannot do without, and drops all others.
//
// # What holds
//
//   - A unit never has blocks of both sides in use (Arena.Check).
//   - Nothing is allocated beyond the border: what Alloc gives lay on the side's own side
//     of the border at that moment.
//   - Border, Move, Stranded take constant time; Alloc and Free take time in the logarithm
//     (base 64) of the number of units.
//   - Bad arguments give an Invalid error or false; never a panic.
package elastic
