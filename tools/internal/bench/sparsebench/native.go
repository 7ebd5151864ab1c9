package sparsebench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/bench"
)

// nativeDrive is the profile of real devices.
const nativeDrive = "native"

// nativeSet is real devices, or files, that plans are read from.
type nativeSet struct {
	paths  []string
	remove func()
	open   []device.Device
	cost   layout.ReadCost
	about  bench.About

	entryBytes int64
	held       *layout.Placement // what is written on them
	mem        []byte
}

// openNative opens the devices of a bench, or makes files, and measures the first.
func (b *run) openNative(ctx context.Context) (_ *nativeSet, err error) {
	most := 0
	for _, n := range b.o.Devices {
		most = max(most, n)
	}
	n := &nativeSet{paths: b.o.NativePaths, remove: func() {}, entryBytes: b.o.EntryBytes, mem: device.AlignedBuffer(256 << 20)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if len(n.paths) > 0 && len(n.paths) < most {
		return n, skep.Invalidf("bench sparse", "--native-device", len(n.paths), fmt.Sprintf("%d devices, as --drives asks for", most))
	}
	const size = 256 << 20
	if len(n.paths) == 0 {
		dir, remove, err := b.o.Workspace("sparse")
		if err != nil {
			return n, err
		}
		n.remove = remove
		for i := range most {
			path := filepath.Join(dir, fmt.Sprintf("device-%d", i))
			d, err := device.Create(path, size, device.Options{})
			if err != nil {
				return n, err
			}
			if err := d.Close(); err != nil {
				return n, err
			}
			n.paths = append(n.paths, path)
		}
	}
	for _, path := range n.paths[:most] {
		d, err := device.Open(path, device.Options{Backend: b.o.Backend, QueueDepth: 128})
		if err != nil {
			return n, err
		}
		n.open = append(n.open, d)
		info := d.Info()
		n.about = bench.About{Backend: info.Backend, BackendReason: info.Reason, Simulated: info.Simulated}
		// Written in full: what was never written reads faster than data.
		rng := rand.NewChaCha8([32]byte{7})
		buf := n.mem[:4<<20]
		rng.Read(buf)
		for off := int64(0); off < min(d.Size(), size); off += int64(len(buf)) {
			if err := device.WriteAt(ctx, d, buf, off); err != nil {
				return n, err
			}
		}
	}
	return n, n.calibrate(ctx)
}

// calibrate measures what one page and what 64 pages cost at depth 64.
func (n *nativeSet) calibrate(ctx context.Context) error {
	per := func(pages int) (float64, error) {
		size := int64(pages) * layout.PageSize
		begin := time.Now()
		_, count, err := bench.RandomReads(ctx, n.open[0], n.mem[:64*size], size, 64, 0.5)
		return time.Since(begin).Seconds() / float64(max(count, 1)), err
	}
	one, err := per(1)
	if err != nil {
		return err
	}
	many, err := per(64)
	if err != nil {
		return err
	}
	n.cost = layout.ReadCost{Page: many / 64, Least: max(one, many/64)}
	return nil
}

// write puts a placement's records on the devices, each beginning with its entry.
func (n *nativeSet) write(ctx context.Context, p *layout.Placement) error {
	if n.held == p {
		return nil
	}
	n.held = nil
	for d := range p.Devices() {
		slots := p.Slots(d)
		for from := 0; from < len(slots); {
			k := min(len(slots)-from, int(4<<20/n.entryBytes))
			buf := n.mem[:int64(k)*n.entryBytes]
			for i, e := range slots[from : from+k] {
				binary.LittleEndian.PutUint32(buf[int64(i)*n.entryBytes:], e)
			}
			if err := device.WriteAt(ctx, n.open[d], buf, int64(from)*n.entryBytes); err != nil {
				return err
			}
			from += k
		}
		if err := device.Sync(ctx, n.open[d]); err != nil {
			return err
		}
	}
	n.held = p
	return nil
}

// read reads plans at once and says how long it took, from the first submission to the
// last completion; every record is checked to be the one that was placed there.
func (n *nativeSet) read(p *layout.Placement, plans []*layout.SparsePlan) (time.Duration, error) {
	ops := make([][]*device.Op, p.Devices())
	count, used := 0, int64(0)
	for _, plan := range plans {
		for _, r := range plan.Runs {
			size := int64(r.Slots) * n.entryBytes
			if used+size > int64(len(n.mem)) {
				return 0, skep.Invalidf("bench sparse", "bytes of a step", used+size, fmt.Sprintf("at most %d", len(n.mem)))
			}
			ops[r.Device] = append(ops[r.Device], &device.Op{Kind: device.Read, Offset: int64(r.Slot) * n.entryBytes, Bufs: [][]byte{n.mem[used : used+size : used+size]}})
			used += size
			count++
		}
	}
	done := make(chan error, count)
	for _, list := range ops {
		for _, op := range list {
			op.Done = func(op *device.Op) { done <- op.Err }
		}
	}
	begin := time.Now()
	waiting := 0
	var errs []error
	for d, list := range ops {
		if len(list) == 0 {
			continue
		}
		if err := n.open[d].Submit(list); err != nil {
			errs = append(errs, err)
			continue
		}
		waiting += len(list)
	}
	for range waiting {
		if err := <-done; err != nil {
			errs = append(errs, err)
		}
	}
	took := time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	for d, list := range ops {
		for _, op := range list {
			first := op.Offset / n.entryBytes
			for i := int64(0); i < int64(len(op.Bufs[0]))/n.entryBytes; i++ {
				if got, want := binary.LittleEndian.Uint32(op.Bufs[0][i*n.entryBytes:]), p.Slots(d)[first+i]; got != want {
					return 0, fmt.Errorf("device %d slot %d holds entry %d, not %d", d, first+i, got, want)
				}
			}
		}
	}
	return took, nil
}

func (n *nativeSet) close() error {
	var errs []error
	for _, d := range n.open {
		errs = append(errs, d.Close())
	}
	n.open = nil
	n.remove()
	return errors.Join(errs...)
}
