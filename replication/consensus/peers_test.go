package consensus

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// What is for another node, of another cluster, or no header at all, is cut; what says nothing is, too, after a while.
func TestConnectionsSayWhoTheyAreFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		defer w.end(t)
		epoch := w.nodes[1].m.Map().Epoch
		of := w.nodes[2].m.peers.of
		require.Equal(t, of, w.nodes[1].m.peers.of, "it has the identity of who leads it")
		header := func(start string, kind byte, of identity, to uint64) []byte {
			return binary.LittleEndian.AppendUint64(append(append([]byte(start), kind), of[:]...), to)
		}
		// ask gives what a node answers to a header and a call.
		ask := func(head []byte, call string) []byte {
			c, err := w.dialer("somebody")(t.Context(), nodeOf(2).Peer)
			require.NoError(t, err)
			defer c.Close()
			var b bytes.Buffer
			b.Write(head)
			if call != "" {
				_ = writeMessage(&b, []byte(call))
			}
			go func() { _, _ = c.Write(b.Bytes()) }()
			answer, _ := io.ReadAll(c)
			return answer
		}
		require.Contains(t, string(ask(header(magic, forCall, of, 2), "{}")), `"epoch":1`)
		for what, c := range map[string]struct {
			head []byte
			call string
		}{
			"another version":   {header("skr2", forCall, of, 2), "{}"},
			"another purpose":   {header(magic, 'x', of, 2), "{}"},
			"another cluster":   {header(magic, forCall, identity{1}, 2), "{}"},
			"no cluster":        {header(magic, forCall, identity{}, 2), "{}"},
			"another node":      {header(magic, forCall, of, 3), "{}"},
			"raft's, of none":   {header(magic, forRaft, identity{1}, 2), ""},
			"half a header":     {header(magic, forCall, of, 2)[:9], ""},
			"nothing":           {nil, ""},
			"no call":           {header(magic, forCall, of, 2), ""},
			"a call of no JSON": {header(magic, forCall, of, 2), "{"},
			"no command":        {header(magic, forCall, of, 2), `{"propose": {"dance": 1}}`},
		} {
			require.Empty(t, ask(c.head, c.call), what)
		}
		long := append(header(magic, forCall, of, 2), 0xff, 0xff, 0xff, 0xff)
		require.Empty(t, ask(long, ""), "a call that is too long")
		require.Equal(t, epoch, w.nodes[2].m.Map().Epoch)
	})
}

// Two clusters that were founded with the same map do not mix, and a node that waits belongs to the one that calls first.
func TestTwoClustersDoNotMix(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		w.start(t, 1, mapOf(3))
		w.start(t, 2, mapOf(3)) // a mistake
		for id := 1; id <= 2; id++ {
			m := w.nodes[id].m
			eventually(t, "it is founded", func() bool { return m.Map() != nil })
		}
		w.start(t, 3, nil)
		eventually(t, "the third hears of a map", func() bool { return w.nodes[3].m.Map() != nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		require.NotEqual(t, w.nodes[1].m.peers.of, w.nodes[2].m.peers.of)
		of := w.nodes[3].m.peers.of
		for id, want := range map[int][]string{1: {"1"}, 2: {"2"}} {
			if w.nodes[id].m.peers.of == of {
				want = append(want, "3")
			}
			require.Equal(t, want, w.nodes[id].voters())
		}
		w.crash(t, 3)
		w.start(t, 3, nil)
		require.Equal(t, of, w.nodes[3].m.peers.of)
	})
}

// A node that was told its cluster listens to no leader of another one that has its number and calls first, such as
// what is left of a cluster that the machine was in before.
func TestANodeThatKnowsItsCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		w.start(t, 1, mapOf(3))
		w.start(t, 2, mapOf(3))
		for id := 1; id <= 2; id++ {
			m := w.nodes[id].m
			eventually(t, "it is founded", func() bool { return m.Map() != nil })
		}
		mine, other := w.nodes[2].m.Cluster(), w.nodes[1].m.Cluster()
		w.stop(t, 2) // its own calls last
		o := w.options(3)
		o.Cluster = mine
		m, err := Open(o)
		require.NoError(t, err)
		w.nodes[3].m = m
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Nil(t, m.Map())
		require.Equal(t, mine, m.Cluster())
		w.start(t, 2, nil)
		eventually(t, "its own calls", func() bool { return m.Map() != nil })
		require.Equal(t, []string{"1"}, w.nodes[1].voters())
		w.stop(t, 3)
		o = w.options(3)
		o.Cluster = other
		_, err = Open(o)
		require.ErrorIs(t, err, skep.Conflict)
		o = w.options(3)
		o.Cluster = mine
		w.nodes[3].m, err = Open(o)
		require.NoError(t, err)
	})
}

// Who holds connections and says nothing, or half of a header, keeps no node out.
func TestStrangersKeepNoNodeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		o := w.options(1)
		o.Found, o.Conns = mapOf(1), 4
		m, err := Open(o)
		require.NoError(t, err)
		w.nodes[1].m = m
		for range 40 {
			c, err := w.dialer("somebody")(t.Context(), nodeOf(1).Peer)
			require.NoError(t, err)
			defer c.Close()
			_, _ = c.Write([]byte(magic)) // it may have been cut already
		}
		of := m.peers.of
		p := &peers{of: of, dial: w.dialer("a node")}
		began := time.Now()
		_, err = p.call(t.Context(), 1, nodeOf(1).Peer, request{})
		require.NoError(t, err)
		require.Less(t, time.Since(began), ioTimeout, "it is not for the strangers' time being over")
		m.peers.mu.Lock()
		defer m.peers.mu.Unlock()
		require.LessOrEqual(t, len(m.peers.open), 4)
	})
}

// Founding needs a directory of no cluster, and a map with the node in it. What there is goes before what is to be founded.
func TestFounding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.end(t)
		one := mapOf(1)
		m := w.start(t, 1, one)
		_, err := m.Propose(t.Context(), open1("s"))
		require.NoError(t, err)
		w.crash(t, 1)
		other := mapOf(1)
		other.Seed[0]++
		m = w.start(t, 1, other)
		eventually(t, "it leads", func() bool { return w.leader() == 1 })
		_, err = m.Propose(t.Context(), open1("s"))
		require.NoError(t, err)
		require.Equal(t, one.Seed, m.Map().Seed)

		o := w.options(2)
		s, err := openLogs(o.FS, "data/raft/log", quiet)
		require.NoError(t, err)
		require.NoError(t, s.keep(identityKey, make([]byte, len(identity{}))))
		require.NoError(t, s.Close())
		o.Found = mapOf(2)
		_, err = Open(o)
		require.ErrorIs(t, err, skep.Conflict)
	})
}

func TestBadOptionsAreRefusedByName(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for field, f := range map[string]func(o *Options){
		"id":           func(o *Options) { o.ID = 0 },
		"directory":    func(o *Options) { o.Dir = "" },
		"listener":     func(o *Options) { o.Listener = nil },
		"id is 4":      func(o *Options) { o.ID, o.Found = 4, mapOf(3) },
		"nodes":        func(o *Options) { o.Found = &clustermap.Map{Seed: clustermap.Seed{1}} },
		"cluster":      func(o *Options) { o.Cluster = "abc" },
		"cluster is 0": func(o *Options) { o.Cluster = "00" },
		"peer address": func(o *Options) { o.Found = mapOf(2); o.Found.Nodes[1].Peer = "" },
	} {
		o := w.options(1)
		f(&o)
		_, err := Open(o)
		require.ErrorIs(t, err, skep.Invalid, field)
		require.ErrorContains(t, err, field)
	}
	names, err := w.nodes[1].fs.List("")
	require.NoError(t, err)
	require.Empty(t, names, "nothing is made")
	o := w.options(1)
	s, err := openLogs(o.FS, "data/raft/log", quiet)
	require.NoError(t, err)
	require.NoError(t, s.keep(identityKey, []byte("short")))
	require.NoError(t, s.Close())
	_, err = Open(o)
	require.ErrorIs(t, err, skep.Damaged)
}

// Over TCP and files, as a server has it.
func TestOverTCP(t *testing.T) {
	t.Parallel()
	first := mapOf(3)
	var at []net.Listener
	for i := range first.Nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		at = append(at, l)
		first.Nodes[i].Peer = l.Addr().String()
	}
	var members []*Member
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	for i, l := range at {
		o := Options{ID: uint64(i + 1), Dir: dirs[i], Listener: l, Logger: quiet}
		if i == 0 {
			o.Found = first
		}
		m, err := Open(o)
		require.NoError(t, err)
		members = append(members, m)
	}
	done := make(chan struct{}, 1)
	stop := members[2].Watch(func(m *clustermap.Map) {
		if m.Epoch == 2 {
			done <- struct{}{}
		}
	})
	for err := error(skep.Unavailable); err != nil; {
		_, err = members[0].Propose(t.Context(), open1("s"))
	}
	<-done
	stop()
	for _, m := range members {
		require.NoError(t, m.Close())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m, err := Open(Options{ID: 3, Dir: dirs[2], Listener: l, Logger: quiet})
	require.NoError(t, err)
	require.NoError(t, m.Close())
}
