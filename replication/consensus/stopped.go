package consensus

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// Values of a node's state besides its identity: below which directory its snapshots lie, where that is not its own,
// and which nodes it was recovered without.
var (
	snapshotsKey = []byte("snapshots")
	recoveredKey = []byte("recovered")
	termKey      = []byte("CurrentTerm") // raft's name
)

// snapshotsPrefix begins the name of a directory of snapshots, before the identity of the cluster that they are of.
const snapshotsPrefix = "of-"

// openSnapshots opens the snapshots that go with a log: what an earlier cluster of the node left is not among them.
// looking: where there are none yet, no directory is made for them.
func openSnapshots(o *Options, s *logs, looking bool) (out snapshots, err error) {
	base, err := s.Get(snapshotsKey)
	if err != nil && !errors.Is(err, errNoValue) {
		return out, err
	}
	if o.SnapshotsIn != nil {
		out.SnapshotStore, err = o.SnapshotsIn(string(base))
		return out, err
	}
	out.dir = filepath.Join(o.Dir, string(base))
	if looking {
		if _, err := os.Stat(filepath.Join(out.dir, "snapshots")); errors.Is(err, os.ErrNotExist) {
			out.SnapshotStore = raft.NewDiscardSnapshotStore()
			return out, nil
		}
	}
	out.SnapshotStore, err = raft.NewFileSnapshotStoreWithLogger(out.dir, snapshotsKept, hclogOf(o.Logger))
	return out, err
}

// snapshots are those that go with a log, in files below dir; in memory where that is empty, for tests.
type snapshots struct {
	raft.SnapshotStore
	dir string
}

// newest is the last entry of the newest one, by the names of their directories: List skips those whose meta.json
// cannot be read.
func (s snapshots) newest() (index uint64) {
	if s.dir == "" {
		return 0
	}
	list, _ := os.ReadDir(filepath.Join(s.dir, "snapshots")) // List has read it
	for _, e := range list {
		parts := strings.Split(e.Name(), "-") // term, index, time; a temporary one's time is no number
		if len(parts) != 3 {
			continue
		}
		at, err := strconv.ParseUint(parts[1], 10, 64)
		if _, err2 := strconv.ParseUint(parts[2], 10, 64); err == nil && err2 == nil {
			index = max(index, at)
		}
	}
	return index
}

// damagedDir is where snapshots lie that could not be read, beside the others.
const damagedDir = "damaged"

// setAside moves snapshots that cannot be read there, in place of what was there. Raft sends other nodes the newest in
// its list, whether it can be read or not, and keeps two: the next one would have the older go, which can be read.
func (s snapshots) setAside(ids []string) error {
	if s.dir == "" || len(ids) == 0 {
		return nil
	}
	to := filepath.Join(s.dir, damagedDir)
	err := errors.Join(os.RemoveAll(to), os.Mkdir(to, 0o700))
	for _, id := range ids {
		err = errors.Join(err, os.Rename(filepath.Join(s.dir, "snapshots", id), filepath.Join(to, id)))
	}
	return err
}

// dropSnapshots removes those of clusters that the node is of no more.
func dropSnapshots(o *Options, now identity) error {
	if o.SnapshotsIn != nil {
		return nil
	}
	err := errors.Join(os.RemoveAll(filepath.Join(o.Dir, "snapshots")), os.RemoveAll(filepath.Join(o.Dir, damagedDir)))
	list, err2 := os.ReadDir(o.Dir)
	err = errors.Join(err, err2)
	for _, e := range list {
		if of, ok := strings.CutPrefix(e.Name(), snapshotsPrefix); ok && of != now.String() {
			err = errors.Join(err, os.RemoveAll(filepath.Join(o.Dir, e.Name())))
		}
	}
	return err
}

// Kept is what a node that does not run has of the agreement.
type Kept struct {
	Cluster string // Member.Cluster
	// Map is the newest that the node's log makes; nil: none. The last of its changes may be agreed on by no other
	// node.
	Map    *clustermap.Map
	Voters []uint64 // numbers of the nodes that vote, as far as the node knows
	// Term is that in which the last change was noted. Of two nodes the one of the higher term, and in one term the one
	// of the higher epoch, knows all that was agreed on of what both may know: a leader that was cut off goes on to note
	// changes, in an earlier term, which nobody agrees on.
	Term uint64
}

// stopped is the state of a node that does not run.
type stopped struct {
	o         Options
	logs      *logs
	snapshots snapshots

	of       identity // all 0: none
	machine  machine
	servers  raft.Configuration
	snapshot uint64   // index of the last entry that it has
	last     uint64   // index of the last entry
	term     uint64   // the highest there is
	changed  uint64   // term of the last change
	damaged  []string // newer snapshots, which cannot be read
	forgot   error    // it would have forgotten what it agreed to: it must not vote. A recovery goes on from what is left
}

// openStopped opens and reads it; looking: nothing is changed.
func openStopped(o Options, looking bool) (s *stopped, err error) {
	const op = "open a stopped cluster member"
	o.fill()
	s = &stopped{o: o, machine: machine{changed: func() {}}}
	failed := func(err error) error {
		return &skep.Error{Op: op, Kind: kindOfOpen(err), Field: "directory", Value: o.Dir, Err: err}
	}
	at := filepath.Join(o.Dir, "log")
	if _, err := o.FS.Stat(at); err != nil {
		return nil, failed(err)
	}
	if s.logs, err = openLogsFor(o.FS, at, o.Logger, looking); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.logs.Close()
		}
	}()
	if s.snapshots, err = openSnapshots(&s.o, s.logs, looking); err != nil {
		return nil, failed(err)
	}
	b, err := s.logs.Get(identityKey)
	if err != nil && !errors.Is(err, errNoValue) {
		return nil, err
	}
	if err == nil && copy(s.of[:], b) != len(b) {
		return nil, &skep.Error{Op: op, Kind: skep.Damaged, Field: "size of the cluster's identity", Value: len(b),
			Limit: len(s.of)}
	}
	if s.term, err = s.logs.GetUint64(termKey); err != nil && !errors.Is(err, errNoValue) {
		return nil, err
	}
	return s, s.replay()
}

// replay carries the log out, from the newest snapshot that can be read.
func (s *stopped) replay() error {
	const op = "replay raft's log"
	list, err := s.snapshots.List()
	if err != nil {
		return &skep.Error{Op: op, Kind: skep.Failed, Field: "snapshots in", Value: s.o.Dir, Err: err}
	}
	kind, most := skep.Damaged, s.snapshots.newest()
	for _, meta := range list {
		_, r, err := s.snapshots.Open(meta.ID)
		if err == nil {
			err = s.machine.Restore(r)
		}
		if err == nil {
			s.snapshot, s.term, s.servers = meta.Index, max(s.term, meta.Term), meta.Configuration
			s.changed = meta.Term
			break
		}
		s.damaged, most = append(s.damaged, meta.ID), max(most, meta.Index)
		if skep.KindOf(err) == skep.Version {
			kind = skep.Version
		}
	}
	if len(list) > 0 && s.snapshot == 0 {
		return &skep.Error{Op: op, Kind: kind, Field: "snapshots in", Value: s.o.Dir, Limit: "one that can be read"}
	}
	end, err := s.logs.LastIndex()
	if err != nil {
		return err
	}
	s.last = max(s.snapshot, end)
	if most > s.last { // it was sent the snapshot, or the log is gone
		s.forgot = &skep.Error{Op: op, Kind: kind, Field: "snapshot of entry", Value: most,
			Limit: "one that can be read, as the log does not reach it"}
	}
	for i := s.snapshot + 1; i <= end; i++ {
		var l raft.Log
		if err := s.logs.GetLog(i, &l); errors.Is(err, raft.ErrLogNotFound) {
			return &skep.Error{Op: op, Kind: skep.Damaged, Field: "entry", Value: i, Limit: "there", Err: err}
		} else if err != nil {
			return err
		}
		s.term = max(s.term, l.Term)
		switch l.Type {
		case raft.LogCommand:
			_ = s.machine.Apply(&l) // what is refused changes nothing
			s.changed = l.Term
		case raft.LogConfiguration:
			if s.servers, err = configurationOf(&l); err != nil {
				return err
			}
		}
	}
	return nil
}

// configurationOf is the one in an entry; raft panics where there is none.
func configurationOf(l *raft.Log) (c raft.Configuration, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &skep.Error{Op: "raft's log", Kind: skep.Damaged, Field: "configuration in entry", Value: l.Index,
				Limit: fmt.Sprint("one: ", r)}
		}
	}()
	return raft.DecodeConfiguration(l.Data), nil
}

func (s *stopped) kept() Kept {
	k := Kept{Map: s.machine.now.Load(), Term: s.changed}
	if s.of != (identity{}) {
		k.Cluster = s.of.String()
	}
	for _, v := range s.servers.Servers {
		if id, _, err := splitAddress(v.Address); err == nil && v.Suffrage == raft.Voter {
			k.Voters = append(k.Voters, id)
		}
	}
	return k
}

// Read gives what a node that does not run has, and changes nothing. Of the Options it takes ID, Dir and Logger.
//
// Errors: Locked (the node runs), Failed, Damaged, Version.
func Read(o Options) (Kept, error) {
	s, err := openStopped(o, true)
	if err != nil {
		return Kept{}, err
	}
	return s.kept(), s.logs.Close()
}

// Recovered is what Recover has made of a node.
type Recovered struct {
	Kept
	From uint32 // epoch of the map that it goes on from
}

// Recover has a node that does not run go on without most of the voters: it is the only voter of a cluster of a new
// identity, with the newest map that it knows, from which the lost nodes, by name, are gone. What it knows of
// namespaces and of what nodes that are down have missed stays. Nodes of the old cluster and of this one do not listen
// to each other. A crash leaves the one or the other; and who asks again for what was done changes nothing. dry:
// nothing is changed, and Cluster is empty.
//
// Of the Options it takes ID, Dir and Logger. Errors: Invalid (lost has nobody, or the node itself), NotFound (it has
// agreed to nothing, or the map lacks a name, or the node), Conflict (most voters are not lost), and those of Read.
func Recover(o Options, lost []string, dry bool) (r Recovered, err error) {
	s, err := openStopped(o, dry)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.logs.Close()) }()
	was := s.machine.now.Load()
	if s.done(was, lost) {
		return Recovered{s.kept(), was.Recovered[len(was.Recovered)-1].Epoch}, nil
	}
	self, c, next, err := s.without(was, lost)
	if err != nil {
		return r, err
	}
	r = Recovered{Kept{Map: next, Voters: []uint64{o.ID}, Term: s.term + 1}, was.Epoch}
	if dry {
		return r, nil
	}
	of := drawIdentity()
	r.Cluster = of.String()
	return r, s.goOn(of, self, c)
}

// done says whether the node was recovered without these nodes before.
func (s *stopped) done(m *clustermap.Map, lost []string) bool {
	b, err := s.logs.Get(recoveredKey)
	if err != nil || m == nil || len(m.Recovered) == 0 || string(b) != listOf(lost) {
		return false
	}
	return !slices.ContainsFunc(lost, func(name string) bool { _, err := m.Node(name); return err == nil })
}

// listOf is names as they are kept: no name has a line's end in it.
func listOf(names []string) string {
	return strings.Join(slices.Sorted(slices.Values(names)), "\n")
}

// without is the map without the nodes that are lost, the command that makes it, and the node in it.
func (s *stopped) without(m *clustermap.Map, lost []string) (
	*clustermap.Node, *clustermap.Command, *clustermap.Map, error,
) {
	const op = "recover cluster"
	if m == nil || s.of == (identity{}) {
		return nil, nil, nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "map", Value: "none",
			Limit: "one that the node agreed to: it was added and never heard of one"}
	}
	i := slices.IndexFunc(m.Nodes, func(n clustermap.Node) bool { return n.ID == s.o.ID })
	if i < 0 {
		return nil, nil, nil, &skep.Error{Op: op, Kind: skep.NotFound, Field: "node", Value: s.o.ID,
			Limit: "one of the map that it knows: this one was removed"}
	}
	self := &m.Nodes[i]
	c := &clustermap.Command{Do: clustermap.Recover, Name: self.Name, Names: lost, Cluster: s.of.String(),
		Term: s.changed}
	next, err := m.Apply(c)
	if err != nil {
		return nil, nil, nil, err
	}
	voters, left := s.kept().Voters, 0
	for i := range next.Nodes {
		if slices.Contains(voters, next.Nodes[i].ID) {
			left++
		}
	}
	if 2*left > len(voters) {
		return nil, nil, nil, &skep.Error{Op: op, Kind: skep.Conflict, Field: "voters that are not lost", Value: left,
			Limit: "at most half of them: most can agree on a map without the others (skep cluster remove)"}
	}
	return self, c, next, nil
}

// goOn appends to the log that the node alone votes, and the command. It is one write of the database, with the
// identity: there is nothing between the old state and the new one. Entries that a snapshot stands for go with it, as
// the log is to have no gap.
func (s *stopped) goOn(of identity, self *clustermap.Node, c *clustermap.Command) error {
	command, err := c.Encode()
	if err != nil {
		return err
	}
	voter := raft.Server{ID: serverID(self.ID), Address: address(self.ID, self.Peer)}
	term := s.term + 1
	list := []*raft.Log{
		{Index: s.last + 1, Term: term, Type: raft.LogConfiguration,
			Data: raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{voter}})},
		{Index: s.last + 2, Term: term, Type: raft.LogCommand, Data: command},
	}
	return s.logs.commit(func(b *pebble.Batch) error {
		err := b.DeleteRange(entryKey(0), entryKey(s.snapshot+1), nil)
		for _, l := range list {
			row, err2 := encodeEntry(l)
			err = errors.Join(err, err2, b.Set(entryKey(l.Index), row, nil))
		}
		return errors.Join(err, b.Set(valueKey(termKey), uint64Value(term), nil),
			b.Set(valueKey(recoveredKey), []byte(listOf(c.Names)), nil), b.Set(valueKey(identityKey), of[:], nil))
	})
}

// Adopt has a node that does not run be one of another cluster, which goes on from the one that it was of: it has
// agreed to nothing there yet. A crash leaves it in the one or in the other. A node that is of that cluster already
// stays as it is.
//
// Of the Options it takes ID, Dir and Logger. Errors: Invalid (the cluster), and those of Read.
func Adopt(o Options, cluster string) (err error) {
	of, err := parseIdentity(cluster)
	if err != nil || of == (identity{}) {
		return &skep.Error{Op: "adopt cluster", Kind: skep.Invalid, Field: "cluster", Value: cluster,
			Limit: "32 hexadecimal digits", Err: err}
	}
	s, err := openStopped(o, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.logs.Close()) }()
	if s.of == of {
		return s.dropOld(of)
	}
	err = s.logs.commit(func(b *pebble.Batch) error {
		return errors.Join(
			b.DeleteRange([]byte{rowEntry}, []byte{rowEntry + 1}, nil),
			b.DeleteRange([]byte{rowValue}, []byte{rowValue + 1}, nil),
			b.Set(valueKey(identityKey), of[:], nil),
			b.Set(valueKey(snapshotsKey), []byte(snapshotsPrefix+of.String()), nil))
	})
	if err != nil {
		return err
	}
	return s.dropOld(of)
}

// dropOld removes the snapshots that the node has no use for any more, where there are such.
func (s *stopped) dropOld(now identity) error {
	base, err := s.logs.Get(snapshotsKey)
	if errors.Is(err, errNoValue) || err == nil && string(base) != snapshotsPrefix+now.String() {
		return nil // they are in use
	}
	if err == nil {
		err = dropSnapshots(&s.o, now)
	}
	if err != nil {
		return &skep.Error{Op: "adopt cluster", Kind: skep.Failed, Field: "directory", Value: s.o.Dir, Err: err}
	}
	return nil
}

// fill puts defaults in.
func (o *Options) fill() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Conns == 0 {
		o.Conns = maxConns
	}
	if o.Threshold == 0 {
		o.Threshold, o.Trailing = snapshotThreshold, trailingEntries
	}
}
