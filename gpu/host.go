package gpu

// Pinner is a Device that copies some host memory directly: memory that the operating system
// keeps in place. Other host memory can be copied too, through pinned memory of the device's
// own, which costs another copy. What a restore from drives is to bring to the device goes
// into memory of a Pinner.
type Pinner interface {
	Device
	// AllocHost takes n bytes of pinned host memory, 1 or more. NoMemory when the driver
	// gives none.
	AllocHost(n int64) ([]byte, error)
	// Pin makes b, which must not be on Go's heap, pinned until Unpin: a mapping that is
	// there already.
	Pin(b []byte) error
	// Unpin gives back what AllocHost or Pin made, given whole. Nothing queued may use it
	// any more. Invalid when it is neither.
	Unpin(b []byte) error
}

// Transfer is one copy of a batch.
type Transfer struct {
	To, From Place
	N        int64
}

// Batcher is a Stream that queues many copies in one call of the driver: blocks of a chain
// are small and far apart. The copies of a batch have no order among themselves and must not
// touch one another's targets.
type Batcher interface {
	Stream
	CopyAll(batch []Transfer)
}

// Handle names device memory for a process of the same machine. Unlike a file of Sharer it
// can be had of memory that was not made to be shared, if its allocator took it from the
// driver in the plain way: an engine's whole allocation, for example.
type Handle [64]byte

// Handler is a Device with handles.
type Handler interface {
	Device
	// Handle names m, which Alloc made. Unsupported for memory that another process made.
	Handle(m Memory) (Handle, error)
	// Open maps n bytes of the memory that h names. Invalid when it names none. Free gives
	// the mapping back; the memory lives only as long as its own process keeps it.
	Open(h Handle, n int64) (Memory, error)
}
