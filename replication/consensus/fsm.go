package consensus

import (
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// machine is the map as the log's entries have made it.
type machine struct {
	now     atomic.Pointer[clustermap.Map] // nil: the cluster was not founded
	changed func()                         // called after now was changed
}

// outcome is what an entry came to: the map's epoch then, and why it changed nothing.
type outcome struct {
	epoch uint32
	err   error
}

// Apply implements raft.FSM.
func (m *machine) Apply(l *raft.Log) any {
	was := m.now.Load()
	c, err := clustermap.DecodeCommand(l.Data)
	next := was
	if err == nil {
		next, err = was.Apply(c)
	}
	if err != nil {
		return outcome{epochOf(was), err}
	}
	if next != was {
		m.now.Store(next)
		m.changed()
	}
	return outcome{next.Epoch, nil}
}

func epochOf(m *clustermap.Map) uint32 {
	if m == nil {
		return 0
	}
	return m.Epoch
}

// snapshotFormat is that of a snapshot's JSON.
const snapshotFormat = 1

type snapshot struct {
	Format int             `json:"format"`
	Map    json.RawMessage `json:"map,omitempty"`
}

// Snapshot implements raft.FSM. Maps are not changed, so it is the map.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) { return snapshotOf{m.now.Load()}, nil }

type snapshotOf struct{ m *clustermap.Map }

// Persist implements raft.FSMSnapshot.
func (s snapshotOf) Persist(sink raft.SnapshotSink) error {
	b, err := s.encode()
	if err == nil {
		_, err = sink.Write(b)
	}
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s snapshotOf) encode() ([]byte, error) {
	out := snapshot{Format: snapshotFormat}
	if s.m != nil {
		b, err := s.m.Encode()
		if err != nil {
			return nil, err
		}
		out.Map = b
	}
	return json.Marshal(out)
}

// Release implements raft.FSMSnapshot.
func (snapshotOf) Release() {}

// Restore implements raft.FSM. What is no snapshot changes nothing.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	const op = "restore snapshot of the map"
	b, err := io.ReadAll(io.LimitReader(r, clustermap.MaxCommand+1))
	if err != nil {
		return &skep.Error{Op: op, Kind: skep.Failed, Err: err}
	}
	var s snapshot
	if err := json.Unmarshal(b, &s); err != nil || len(b) > clustermap.MaxCommand {
		return &skep.Error{Op: op, Kind: skep.Damaged, Field: "size in bytes", Value: len(b), Limit: clustermap.MaxCommand, Err: err}
	}
	if s.Format != snapshotFormat {
		return &skep.Error{Op: op, Kind: skep.Version, Field: "format", Value: s.Format, Limit: snapshotFormat}
	}
	var next *clustermap.Map
	if len(s.Map) > 0 {
		if next, err = clustermap.Decode(s.Map); err != nil {
			return &skep.Error{Op: op, Kind: skep.Damaged, Err: err}
		}
	}
	m.now.Store(next)
	m.changed()
	return nil
}
