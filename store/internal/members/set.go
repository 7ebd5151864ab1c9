package members

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Config is what a set of drives works with.
type Config struct {
	Context context.Context // ends with the store
	Named   bool            // paths are names that their owner gave, and none of the file system's
	Timeout time.Duration   // of writing all superblocks
	Log     *slog.Logger
	// Write writes a drive's superblocks, which say that the store has so many.
	Write func(ctx context.Context, d *space.Drive, drives int, sequence uint64) error
}

// Set is the drives of a store. It is safe for any number of goroutines. Make it with New.
type Set struct {
	Config
	Opened    []*space.Drive                 // by index, as the open found them; nobody else has the store then
	turn      chan struct{}                  // held by who adds, removes or retires a drive
	grown     atomic.Pointer[[]*space.Drive] // all of them, once some were added since the open
	unstamped atomic.Bool                    // a superblock does not say how many drives there are
}

// New makes the set that an open puts the drives it finds into.
func New(c Config) *Set { return &Set{Config: c, turn: make(chan struct{}, 1)} }

// All are the store's drives by index, those that were removed included, and those
// that were added since the open. Who asks twice may be told of more.
func (m *Set) All() []*space.Drive {
	if list := m.grown.Load(); list != nil {
		return *list
	}
	return m.Opened
}

// Add appends a drive. REQUIRES: the turn.
func (m *Set) Add(d *space.Drive) {
	list := append(slices.Clone(m.All()), d)
	m.grown.Store(&list)
}

// Knows says whether a device is one of the store's, or was.
func (m *Set) Knows(id segment.DeviceID) bool {
	return slices.ContainsFunc(m.All(), func(d *space.Drive) bool { return segment.DeviceID(d.ID) == id })
}

// GivenUp are the numbers of the drives that a rebuild went on without, of those that were taken out since, too: the
// drive may come back all the same.
func (m *Set) GivenUp() (list []uint16) {
	for _, d := range m.All() {
		if d.GivenUp {
			list = append(list, d.Index)
		}
	}
	return list
}

// Written is how many bytes the drives have written since the open: payload, logs, cleaning.
func (m *Set) Written() (n int64) {
	for _, d := range m.All() {
		n += int64(d.Dev.Stats().Writes.Bytes)
	}
	return n
}

// Find is the drive of a name: its index, a path that leads to it, its serial number or the
// beginning of its id in hexadecimal.
func (m *Set) Find(op, name string) (*space.Drive, error) {
	var found []*space.Drive
	path, err := filepath.Abs(name)
	if err != nil || m.Named {
		path = name
	}
	for _, d := range m.All() {
		if d.Removed.Load() {
			continue
		}
		leads := !m.Named && paths.Device(path) == paths.Device(d.Path)
		id := hex.EncodeToString(d.ID[:])
		if name == strconv.Itoa(int(d.Index)) || path == d.Path || leads || d.Serial != "" && name == d.Serial || len(name) >= 6 && len(name) <= len(id) && name == id[:len(name)] {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "device", Value: name, Limit: fmt.Sprintf("the index, path, serial number or id of one device of the store; %d match", len(found))}
	}
	return found[0], nil
}

// Take waits until nobody else adds, removes or retires a drive; Give ends the turn.
func (m *Set) Take(ctx context.Context, op string) error {
	select {
	case m.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &skep.Error{Op: op, Kind: skep.Deadline, Err: ctx.Err()}
	}
}

// Give ends the turn.
func (m *Set) Give() { <-m.turn }

// Restamp writes into the superblocks of all drives how many there are now. The catalog has said so
// already: what a drive does not take is written when it does, and fails nobody. REQUIRES:
// the turn, or that nobody else has the store yet.
func (m *Set) Restamp() {
	ctx, cancel := context.WithTimeout(m.Context, m.Timeout)
	defer cancel()
	n, sequence := 0, uint64(0)
	for _, d := range m.All() {
		if !d.Removed.Load() && !d.GivenUp {
			n++
		}
		sequence = max(sequence, d.Sequence)
	}
	failed := false
	for _, d := range m.All() {
		if d.Removed.Load() || d.Condition() == health.Dead || d.Stamped == n {
			continue
		}
		if d.Condition() == health.Fenced {
			failed = true // until it is well again
			continue
		}
		err := m.Write(ctx, d, n, sequence+1)
		if err == nil {
			d.Stamped = n
		} else {
			failed = true
			if !m.unstamped.Load() {
				m.Log.Warn("superblock does not say how many devices there are now; it is written again", "device", d.Path, "devices", n, "error", err)
			}
		}
	}
	m.unstamped.Store(failed)
}

// RestampAgain does what Restamp could not.
func (m *Set) RestampAgain() {
	if !m.unstamped.Load() {
		return
	}
	select {
	case m.turn <- struct{}{}:
		m.Restamp()
		m.Give()
	default: // a drive is being added or removed
	}
}
