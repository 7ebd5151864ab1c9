package storm

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
)

// copy is a copy of a disk whose node does not run: what a backup has.
func (d *disk) copy() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &disk{log: d.log[:len(d.log):len(d.log)], fs: d.fs.CrashClone(vfs.CrashCloneCfg{}), snapshots: d.snapshots,
		known: d.known}
}

// replace has a node be taken out of the map that is gone for good, and added again with wiped drives, as an operator
// is told to who has but an old copy of its directory. Now and then that copy is served first, by mistake: nobody is to
// be served what is in it.
func (w *world) replace(n *node) {
	if w.lost || !w.crashed(n) {
		return
	}
	w.note("%s is gone for good", n.of.Name)
	w.lost = true
	w.books.unsure()
	w.n.heal()
	for _, o := range w.nodes {
		if o != n {
			w.again(o)
		}
	}
	w.must(clustermap.Command{Do: clustermap.RemoveNode, Name: n.of.Name}, "removal of "+n.of.Name, skep.NotFound)
	if w.r.IntN(2) == 0 && !w.isBroken() {
		if n.backup != nil && w.r.IntN(2) == 0 {
			n.disk = n.backup
		}
		w.again(n)
		w.pause()
		w.crash(n, true)
	}
	w.add(n)
}

// add adds a node anew, with empty drives.
func (w *world) add(n *node) {
	w.must(clustermap.Command{Do: clustermap.AddNode, Node: &clustermap.Node{Name: n.of.Name, Addr: n.of.Addr,
		Peer: n.of.Peer, Weight: 1}}, "addition of "+n.of.Name, skep.Conflict)
	if w.isBroken() {
		return
	}
	by := w.newest()
	m := by.member.Map()
	now, err := m.Node(n.of.Name)
	require.NoError(w.t, err)
	n.of, n.disk, n.backup = *now, newDisk(m), nil
	n.disk.cluster = by.member.Cluster()
	w.again(n)
}

// newest is the process whose map is.
func (w *world) newest() (p *process) {
	epoch := uint32(0)
	for _, n := range w.running() {
		if m := n.run.member.Map(); m != nil && m.Epoch >= epoch {
			p, epoch = n.run, m.Epoch
		}
	}
	return p
}

// must has the nodes agree on a change while they can; done is the error of one that is made already.
func (w *world) must(c clustermap.Command, what string, done skep.Kind) {
	for range 10 {
		if err := w.propose(c, what); err == nil || skep.KindOf(err) == done {
			return
		}
		time.Sleep(time.Second)
	}
	w.broken("most nodes run and reach each other, and cannot agree on it: %s", what)
}

// recover has one node go on without the two others, which are lost for good and added again with wiped drives.
func (w *world) recover() {
	if w.lost {
		return
	}
	for _, n := range w.nodes {
		w.again(n)
	}
	w.n.heal()
	w.eventually("all nodes serve", w.serving)
	if w.isBroken() {
		return
	}
	one := w.nodes[w.r.IntN(3)]
	var names []string
	for _, n := range w.nodes {
		if n != one {
			names = append(names, n.of.Name)
		}
		w.crash(n, true)
	}
	w.note("%v are lost for good, and %s goes on alone", names, one.of.Name)
	w.lost = true
	w.books.anything()
	w.pause()
	d := one.disk
	got, err := consensus.Recover(consensus.Options{ID: one.of.ID, Dir: "data/cluster", Logger: w.log, FS: d.fs,
		SnapshotsIn: d.snapshotsIn, Threshold: 20, Trailing: 5}, names, false)
	if err != nil {
		w.broken("%s cannot go on alone: %v", one.of.Name, err)
		return
	}
	d.known = got.Map
	w.again(one)
	for _, n := range w.nodes {
		if n != one {
			w.add(n)
		}
	}
}

// anything notes that what was acknowledged, or is asked to be put, may be lost, for good: most of the nodes were.
func (b *books) anything() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = time.Now()
	for _, x := range b.spots {
		for i := range x.blocks {
			x.blocks[i].acked = false
		}
	}
}

// backups copies the disks of nodes, each of which is stopped for it.
func (w *world) backups() {
	n := w.nodes[w.r.IntN(3)]
	if n.run == nil || len(w.running()) < 3 {
		return
	}
	w.stop(n)
	n.backup = n.disk.copy()
	w.again(n)
}
