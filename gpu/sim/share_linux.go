package sim

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

var _ gpu.Sharer = (*Device)(nil)

// AllocShared implements gpu.Sharer: the memory is a sealed memfd.
func (d *Device) AllocShared(n int64) (gpu.Memory, *os.File, error) {
	m, err := d.Alloc(n)
	if err != nil {
		return nil, nil, err
	}
	f, err := memfd(m.Size())
	if err == nil {
		if err = m.(*memory).share(f); err == nil {
			return m, f, nil
		}
		f.Close()
	}
	return nil, nil, errors.Join(fmt.Errorf("simulated shared GPU memory: %w", err), m.Free())
}

func memfd(n int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("simulated GPU", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "simulated GPU memory")
	if err = f.Truncate(n); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// seals keep the size, so that no access to a mapping can fail.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// share puts the memfd in place of the memory's own bytes.
func (m *memory) share(f *os.File) error {
	data, err := unix.Mmap(int(f.Fd()), 0, int(m.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	m.device.w.mu.Lock()
	defer m.device.w.mu.Unlock()
	m.data, m.unmap = data[:len(m.data)], func() error { return unix.Munmap(data) }
	m.poison()
	return nil
}

// Import implements gpu.Sharer.
func (d *Device) Import(f *os.File, n int64) (gpu.Memory, error) {
	const op = "import GPU memory"
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, err
	}
	got, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || got&seals != seals {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "file", Value: f.Name(), Limit: "a sealed memfd", Err: err}
	}
	st, err := f.Stat()
	if err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "file", Err: err}
	}
	if n < 1 || n > st.Size() {
		return nil, skep.Invalidf(op, "bytes", n, fmt.Sprintf("1 to %d", st.Size()))
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("simulated GPU: import %d bytes: %w", n, err)
	}
	d.memories++
	return &memory{device: d, size: st.Size(), data: data[:n], imported: true, unmap: func() error { return unix.Munmap(data) }}, nil
}
