package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Names of the file backends, for Options.Backend.
const (
	Auto    = "auto"    // io_uring where it can be had, the pool otherwise
	IOUring = "iouring" // an error where it cannot be had
	Pool    = "pool"
)

// Options of Open and Create. The zero value is good.
type Options struct {
	// Backend is Auto (also the empty string), IOUring or Pool.
	Backend string

	// QueueDepth is how many ops an io_uring gives the drive at once, 1 to 4096;
	// 128 by default.
	QueueDepth int

	// Workers is how many goroutines the pool gives the drive at once, 1 to 4096;
	// 32 by default. They run only while there is work.
	Workers int

	// CloseTimeout is how long Close waits for ops in flight; 5 s by default.
	CloseTimeout time.Duration

	// WriteZeros makes Create write the file in full: later first writes into a
	// preallocated file are slower, and a file system may keep them only after a
	// flush.
	WriteZeros bool

	// Buffered does without O_DIRECT.
	Buffered bool

	// ReadOnly opens for reads only, under a shared lock. Refused by Create.
	ReadOnly bool

	// NoLock does without the lock that keeps a second Open out. Two writers
	// destroy each other's data.
	NoLock bool
}

const (
	defaultQueueDepth = 128
	defaultWorkers    = 32
	maxParallel       = 4096
)

// withDefaults returns o completed, or an *ArgError.
func (o Options) withDefaults() (Options, error) {
	if o.Backend == "" {
		o.Backend = Auto
	}
	if o.QueueDepth == 0 {
		o.QueueDepth = defaultQueueDepth
	}
	if o.Workers == 0 {
		o.Workers = defaultWorkers
	}
	if o.CloseTimeout == 0 {
		o.CloseTimeout = defaultCloseTimeout
	}
	switch {
	case o.Backend != Auto && o.Backend != IOUring && o.Backend != Pool:
		return o, &ArgError{Op: -1, Field: "Options.Backend", Value: o.Backend, Limit: "auto, iouring or pool"}
	case o.QueueDepth < 1 || o.QueueDepth > maxParallel:
		return o, &ArgError{Op: -1, Field: "Options.QueueDepth", Value: o.QueueDepth, Limit: fmt.Sprintf("1 to %d", maxParallel)}
	case o.Workers < 1 || o.Workers > maxParallel:
		return o, &ArgError{Op: -1, Field: "Options.Workers", Value: o.Workers, Limit: fmt.Sprintf("1 to %d", maxParallel)}
	case o.CloseTimeout < 0:
		return o, &ArgError{Op: -1, Field: "Options.CloseTimeout", Value: o.CloseTimeout, Limit: "not negative"}
	}
	return o, nil
}

// Open opens an existing file or block device. The usable size is its size
// rounded down to Align.
func Open(path string, o Options) (Device, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	f, err := openFile(path, o, false)
	if err != nil {
		return nil, err
	}
	return start(f, o)
}

// Create makes a new file of size bytes (a positive multiple of Align), its
// blocks allocated, or fails and leaves nothing behind. The file and its name are
// durable when it returns. An existing file is never touched.
func Create(path string, size int64, o Options) (Device, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if size <= 0 || !aligned(size) {
		return nil, &ArgError{Op: -1, Field: "size", Value: size, Limit: fmt.Sprintf("a positive multiple of %d", Align)}
	}
	if o.ReadOnly {
		return nil, &ArgError{Op: -1, Field: "Options.ReadOnly", Value: true, Limit: "false in Create"}
	}
	f, err := openFile(path, o, true)
	if err != nil {
		return nil, err
	}
	d, err := create(f, size, o)
	if err != nil {
		os.Remove(path) // ours: O_EXCL
		return nil, err
	}
	return d, nil
}

func create(f *file, size int64, o Options) (Device, error) {
	zeros := o.WriteZeros
	err := f.allocate(0, size)
	if errors.Is(err, errors.ErrUnsupported) {
		// Only writing makes the space ours on such a file system.
		zeros, err = true, f.f.Truncate(size)
	}
	if err != nil {
		f.close()
		return nil, fmt.Errorf("device: create %s with %d bytes: %w", f.path, size, err)
	}
	d, err := start(f, o)
	if err != nil {
		return nil, err
	}
	if zeros {
		err = writeZeros(d, size)
	}
	if err == nil {
		err = f.f.Sync()
	}
	if err == nil {
		err = syncDir(filepath.Dir(f.path))
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("device: create %s with %d bytes: %w", f.path, size, err)
	}
	return d, nil
}

// writeZeros writes the whole device, a few large ops at a time.
func writeZeros(d Device, size int64) error {
	const piece, parallel = 4 << 20, 4
	buf := AlignedBuffer(piece)
	for off := int64(0); off < size; {
		var ops []*Op
		for ; len(ops) < parallel && off < size; off += piece {
			n := min(piece, size-off)
			ops = append(ops, &Op{Kind: Write, Offset: off, Bufs: [][]byte{buf[:n]}})
		}
		if err := Run(context.Background(), d, ops...); err != nil {
			return err
		}
	}
	return Sync(context.Background(), d)
}

// start puts a backend on an open file, which it owns from here on.
func start(f *file, o Options) (Device, error) {
	size, err := f.size()
	if err != nil {
		f.close()
		return nil, fmt.Errorf("device: size of %s: %w", f.path, err)
	}
	size -= size % Align
	info := Info{Path: f.path, Serial: f.serial, Reason: f.reason, Raw: f.raw, Direct: f.direct, ReadOnly: o.ReadOnly}
	if o.Backend != Pool {
		d, err := newRing(f, info, size, o)
		if err == nil {
			return d, nil
		}
		if o.Backend == IOUring {
			f.close()
			return nil, err
		}
		info.Reason = joinReasons(info.Reason, err.Error())
	}
	return newFilePool(f, info, size, o), nil
}

func joinReasons(reasons ...string) string {
	var said []string
	for _, r := range reasons {
		if r != "" {
			said = append(said, r)
		}
	}
	return strings.Join(said, "; ")
}

// syncDir makes a new name in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !dirSyncOptional {
		return err
	}
	return nil
}

// growFile is Grow for the file backends. REQUIRES: f.growMu.
func growFile(c *core, f *file, size int64) error {
	if err := c.enter(1); err != nil {
		return err
	}
	defer c.exit(1)
	if err := c.checkGrow(size); err != nil {
		return err
	}
	if f.raw {
		return errUnsupported("grow a block device")
	}
	if c.info.ReadOnly {
		return &ArgError{Op: -1, Field: "Options.ReadOnly", Value: true, Limit: "false to grow"}
	}
	cur := c.size.Load()
	if size == cur {
		return nil
	}
	if err := f.allocate(cur, size); err != nil {
		return fmt.Errorf("device: grow %s from %d to %d bytes: %w", f.path, cur, size, err)
	}
	c.size.Store(size)
	return nil
}
