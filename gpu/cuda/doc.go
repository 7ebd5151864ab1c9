// Package cuda is gpu.Device on NVIDIA's driver: gorgonia.org/cu, and a cgo file for what
// that lacks (shared memory, pinned memory, virtual memory management, batches of copies,
// 64-bit waits and writes on streams).
//
// It is built with the tag cuda, on Linux, with cgo; `make cuda` does, on a machine without
// CUDA too. Without the tag Open says what is missing.
//
// It is a module of its own, so that a program that embeds skep does not require the binding.
//
// # A process of its own
//
// A program that links it needs libcuda.so.1 to start, and ends at once where there is no
// GPU: cu's initialisation calls os.Exit(1). A CUDA error may be sticky: nothing but the end
// of the process clears it. So nobody imports it but a command that runs as a child process
// (skep-gpu), whose end is the end of its device's work and of its hold on lent memory.
//
// # How the interface maps
//
//	Device     a primary context, made current for each call on whatever thread makes it
//	Alloc      cuMemAlloc; AllocShared: cuMemCreate, mapped, with a file descriptor to send
//	Stream     a stream that does not synchronise with the default one
//	Counter    8 bytes of pinned host memory: cuStreamWriteValue64, cuStreamWaitValue64
//	Sync       an event, polled, so that a deadline can end the wait
//	Compute    a kernel of ours that spins
//
// A copy out of bounds, to freed memory, or to a device that is no peer is found before the
// driver sees it, and fails the device as the driver's own illegal address would.
//
// Host memory that is not pinned goes through pinned memory in pieces: a host function that
// the stream calls copies what came out. No copy reads or writes memory of Go's that is not
// pinned meanwhile.
//
// # Without a GPU
//
// gpu/fakecuda is a driver of our own in host memory, and the suite of gpu/gputest runs on
// this package over it (`make cuda-test`). A device of the fake says Simulated.
package cuda

// Options are those of Open.
type Options struct {
	// StagingBytes is the most pinned host memory for copies of memory that is not pinned.
	// 0: 256 MiB.
	StagingBytes int64
}
