// Package sim simulates GPUs for package gpu: their memories, streams, counters and the
// links between them. No figure that comes from it is a measurement, and Device.Simulated
// says so.
//
// It is made to show mistakes. Work is deferred: nothing queued happens before somebody
// waits for something, and then a copy reads its source late and writes its target late, in
// pieces, at moments a seeded generator chooses between its start and its end. So a wait that
// is missing shows as wrong bytes, sooner or later, and with the seed it shows again. Memory
// is poisoned when it is allocated and when it is freed; freeing twice, and reaching past an
// end, into freed memory or into a peer that was not enabled, is the device's sticky error,
// as an illegal address is on a GPU.
//
// Time is virtual. A copy takes the link's latency and its bytes over the link's share:
// copies that are on one link at the same time share its bandwidth equally. Kernels of one
// device run beside each other without slowing down.
//
// A World is one server with its GPUs. One goroutine at a time runs it: whoever waits.
package sim
