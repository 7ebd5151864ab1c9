// Package gpu serves KV blocks out of GPU memory: a model's own, and what models beside it
// lend (SwiftCache, arXiv 2606.16135).
//
//	Store                      a Store in front of a Store: blocks in own GPU memory, then in
//	                           lent memory, then behind. Every block has its copy behind, so
//	                           losing a device or giving memory back is a miss here only
//	Store.RestoreTo            blocks into an engine's slots on the device, on its stream
//	Store.Prefill              a prompt computed layer by layer, with most of its blocks in lent
//	                           memory: longer than own memory holds
//	Store.LayerRoom            local memory for the layer at work: as much as what is lent makes it
//	Device, Stream, Counter    what a GPU driver offers, as far as skep needs it. Package
//	                           gpu/cuda has it of NVIDIA's, in a module of its own; package
//	                           gpu/sim simulates it: everything it gives says so
//	Schedule, Pipeline         layer streaming (stream.go): KV of one layer at a time in local memory, the next
//	                           layer's on its way while this one's is at work; Pipeline.Step queues a step's tasks
//
// Who may allocate what in lent memory is arithmetic, in layout/elastic; how lender and borrower agree on it is package
// gpu/lend, a pure state machine; package gpu/loan does so between processes.
//
// # Order on a GPU
//
// Work is queued on streams. One stream does its work in order; two streams know nothing of
// each other. What orders them is a Counter: a 64-bit number in memory that a stream raises
// (Signal) and another waits for (Wait). Counters only grow, so a wait for a value that has
// been passed is no wait, and one for a value that nobody has asked to be reached yet does
// wait: unlike a CUDA event, which lets through who waits for it before it was recorded.
//
// # It is a prefill design
//
// A layer that is streamed in for one prefill step is used once for all its tokens. Decoding
// reads every layer for every token: from lent memory that is the whole context over the
// link per token (elastic.Borrower.DecodeBytes).
package gpu
