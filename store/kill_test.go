package store

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
)

const (
	childDir     = "SKEP_TEST_CHILD_DIR"
	childBackend = "SKEP_TEST_CHILD_BACKEND"
	childRound   = "SKEP_TEST_CHILD_ROUND"
	childEnd     = "SKEP_TEST_CHILD_END" // what it finds no more of; "": it is killed
)

func childMode() bool { return os.Getenv(childDir) != "" }

func childOptions(dir, backend string) Options {
	o := small(dir)
	o.DeviceCount, o.SegmentBytes, o.CapacityBytes = 3, 512<<10, 24<<20
	o.Device.Backend = backend
	o.FlushInterval = 20 * time.Millisecond
	return o
}

// The child's blocks: chains of a round, and a few keys that are put over and over.
const (
	childChain = 12
	childKeys  = 8
)

func childSize(i int) int { return 3000 + 4001*(i%9) }

func roundKeys(round, chain int) []skep.Key {
	return chainKeys(1_000_000*(round+1)+chain, childChain)
}

// eachKeys are of chains of one block.
func eachKeys(round, n int) []skep.Key { return roundKeys(round+5000, n) }

// runChild puts under load until it is killed, and says what was acknowledged: before
// a line of put is written nothing of it is begun, and after one of ack it is done.
func runChild() int {
	ctx := context.Background()
	round, _ := strconv.Atoi(os.Getenv(childRound))
	s, err := Open(ctx, childOptions(os.Getenv(childDir), os.Getenv(childBackend)))
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	open := func(name string, class skep.Class, copies int, chained bool) skep.Scope {
		n, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "t", Name: name, Shape: anySize, Class: class, Copies: copies, Chained: chained})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return skep.Scope{Namespace: n.ID}
	}
	durable, keys, cache := open("durable", skep.Durable, 1, true), open("keys", skep.Durable, 2, false), open("cache", skep.Cache, 1, true)
	fmt.Println("open")
	go endChild(os.Getenv(childEnd))
	fail := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	go func() { // churn, so that the cleaner has work
		for n := 0; ; n++ {
			r := &skep.PutRequest{Scope: cache}
			for i, k := range roundKeys(round+1000, n) {
				r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 1, 4*childSize(i))}}})
			}
			_, err := s.Put(ctx, r)
			fail(err)
		}
	}()
	go func() { // the last writer wins
		for v := 1; ; v++ {
			i := v % childKeys
			k := keyOf(uint32(i), 4242)
			version := round*10_000 + v
			fmt.Println("put", i, version)
			r := &skep.PutRequest{Scope: keys, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, version, childSize(i))}}}}}
			res, err := s.Put(ctx, r)
			fail(err)
			if res[0].Outcome == skep.Committed {
				fmt.Println("ack", i, version)
			}
		}
	}()
	go func() { // chains of one block, many in a put
		for n := 0; ; n++ {
			all := eachKeys(round, n)
			r := &skep.PutRequest{Scope: durable, Each: true}
			for i, k := range all {
				part := skep.Part{Bytes: content(k, skep.PartKV, 1, childSize(i))}
				r.Blocks = append(r.Blocks, skep.Block{Key: k, Parts: []skep.Part{part}})
			}
			fmt.Println("puteach", n, 0)
			res, err := s.Put(ctx, r)
			fail(err)
			if !slices.ContainsFunc(res, func(r skep.PutResult) bool { return r.Outcome != skep.Committed }) {
				fmt.Println("each", n, 0)
			}
			if n > 0 { // make room
				fmt.Println("puteach", n-1, 0)
				_, err := s.Delete(ctx, durable, eachKeys(round, n-1))
				fail(err)
			}
		}
	}()
	for n := 0; ; n++ {
		all := roundKeys(round, n)
		fmt.Println("begin", n)
		for i, k := range all {
			r := &skep.PutRequest{Scope: durable, Depth: i, Ack: skep.AckCommitted, Blocks: []skep.Block{{Key: k, Parts: []skep.Part{{Bytes: content(k, skep.PartKV, 1, childSize(i))}}}}}
			if i > 0 {
				r.Parent = &all[i-1]
			}
			res, err := s.Put(ctx, r)
			fail(err)
			if res[0].Outcome == skep.Committed {
				fmt.Println("chain", n, i+1)
			}
		}
		if n%3 == 1 { // what is deleted stays so
			_, err := s.Delete(ctx, durable, all[4:])
			fail(err)
			fmt.Println("deleted", n, 4)
		}
		if n >= 8 { // Durable blocks are never evicted: make room
			fmt.Println("deleting", n-8, 0)
			_, err := s.Delete(ctx, durable, roundKeys(round, n-8))
			fail(err)
			fmt.Println("deleted", n-8, 0)
		}
	}
}

// childLog is what a child said.
type childLog struct {
	chains   map[int]int // chain: blocks acknowledged
	deleting map[int]int // chain: from which block on its end is in doubt
	deleted  map[int]int // chain: from which block on it is gone
	begun    map[int]bool
	acked    map[int]int  // key: version
	begunAt  map[int]int  // key: highest version begun
	each     map[int]bool // put of chains of one block: all are acknowledged, or in doubt
	lines    int
	errors   []string
}

func (l *childLog) add(line string) {
	l.lines++
	var word string
	var a, b int
	n, _ := fmt.Sscan(line, &word, &a, &b)
	switch {
	case word == "error":
		l.errors = append(l.errors, line)
	case word == "begin":
		l.begun[a] = true
	case n < 3:
	case word == "chain":
		l.chains[a] = b
		if b == childChain && a%3 == 1 {
			l.deleting[a] = 4 // it goes on to delete
		}
	case word == "deleting":
		l.deleting[a] = b
	case word == "deleted":
		l.deleted[a] = b
	case word == "put":
		l.begunAt[a] = b
	case word == "puteach" || word == "each":
		l.each[a] = word == "each"
	case word == "ack":
		l.acked[a] = b
	}
}

// TestKill kills a process that puts under load, with SIGKILL at random moments, and
// opens what it left: everything acknowledged as Durable is there and right, what was
// deleted is not, and nothing is wrong.
func TestKill(t *testing.T) {
	t.Parallel() // it waits
	rng := newRand(testSeed(t))
	kills := testNumber(t, "SKEP_KILLS", 4)
	for _, backend := range []string{device.Auto, device.Pool} {
		t.Run(backend, func(t *testing.T) {
			dir := tempRoot(t, "store")
			lastAck := map[int]int{} // of keys, over all rounds
			for round := range kills {
				l := killOne(t, rng, dir, backend, "", round)
				require.Empty(t, l.errors)
				for i, v := range l.acked {
					lastAck[i] = v
				}
				checkKilled(t, dir, backend, round, l, lastAck)
			}
		})
	}
}

// killOne runs a child and kills it, or has it find no more of something.
func killOne(t *testing.T, rng *rand.Rand, dir, backend, end string, round int) *childLog {
	l := &childLog{chains: map[int]int{}, deleting: map[int]int{}, deleted: map[int]int{}, begun: map[int]bool{}, acked: map[int]int{}, begunAt: map[int]int{}, each: map[int]bool{}}
	ctx := testContext(t)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childDir+"="+dir, childBackend+"="+backend, childRound+"="+strconv.Itoa(round), childEnd+"="+end)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	opened := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if l.add(lines.Text()); l.lines == 1 {
				close(opened)
			}
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	select {
	case <-opened:
	case <-done:
		_ = cmd.Wait()
		t.Fatalf("the child ended: %v", l.errors)
	}
	if end != "" {
		<-done
		require.Error(t, cmd.Wait())
		require.Regexp(t, "memory|thread|address space", said.String()) // for want of one it may miss another
		return l
	}
	if round == 0 {
		whileAlive(t, dir, backend, cmd.Process.Pid)
	}
	time.Sleep(time.Duration(20+rng.IntN(250)) * time.Millisecond)
	require.NoError(t, cmd.Process.Kill())
	<-done
	require.Error(t, cmd.Wait())
	return l
}

// whileAlive looks at a store that another process has open.
func whileAlive(t *testing.T, dir, backend string, pid int) {
	o := childOptions(dir, backend)
	_, err := Open(context.Background(), o)
	requireKind(t, skep.Locked, err)
	require.Contains(t, err.Error(), "process "+strconv.Itoa(pid))
	o.ReadOnly = true
	s, err := Open(context.Background(), o)
	require.NoError(t, err)
	list, err := s.Namespaces(context.Background())
	require.NoError(t, err)
	require.Len(t, list, 3)
	st, err := s.Stats(context.Background())
	require.NoError(t, err)
	require.Equal(t, "read-only", st.State)
	_, err = s.Put(context.Background(), putRequest(skep.Scope{Namespace: list[0].ID}, nil, 0, chainKeys(1, 1), 100))
	requireKind(t, skep.ReadOnly, err)
	require.NoError(t, s.Close())
}

func checkKilled(t *testing.T, dir, backend string, round int, l *childLog, lastAck map[int]int) {
	ctx := testContext(t)
	s, err := Open(ctx, childOptions(dir, backend))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	durable, keys := openSpace(t, s, "durable", skep.Durable, 1, true), openSpace(t, s, "keys", skep.Durable, 2, false)
	cache := openSpace(t, s, "cache", skep.Cache, 1, true)
	checked := 0
	for n := range l.begun {
		all := roundKeys(round, n)
		list, err := fetch(ctx, s, skep.Chain{Scope: durable, Keys: all})
		require.NoError(t, err)
		must := l.chains[n]
		if from, ok := l.deleting[n]; ok {
			must = min(must, from)
		}
		gone, isGone := l.deleted[n]
		for i, g := range list {
			what := fmt.Sprintf("round %d, chain %d, block %d of %d acknowledged", round, n, i, l.chains[n])
			switch {
			case isGone && i >= gone:
				require.Error(t, g.err, "%s is back", what)
			case i < must:
				require.NoError(t, g.err, what)
				checked++
			}
			if g.err == nil {
				require.True(t, string(content(all[i], skep.PartKV, 1, childSize(i))) == string(g.data), "bytes of %s", what)
			}
		}
	}
	for n, acked := range l.each {
		for i, k := range eachKeys(round, n) {
			list, err := fetch(ctx, s, skep.Chain{Scope: durable, Keys: []skep.Key{k}})
			require.NoError(t, err)
			require.True(t, !acked || list[0].err == nil, "round %d, put %d, chain %d of one: %v", round, n, i, list[0].err)
			if list[0].err == nil {
				require.True(t, string(content(k, skep.PartKV, 1, childSize(i))) == string(list[0].data), "round %d, put %d, chain %d of one", round, n, i)
				checked++
			}
		}
	}
	for i := range childKeys {
		k := keyOf(uint32(i), 4242)
		list, err := fetch(ctx, s, skep.Chain{Scope: keys, Keys: []skep.Key{k}})
		require.NoError(t, err)
		if lastAck[i] == 0 && list[0].err != nil {
			continue
		}
		require.NoError(t, list[0].err, "key %d, version %d acknowledged", i, lastAck[i])
		var versions []int
		for _, v := range []int{lastAck[i], l.begunAt[i]} {
			if v > 0 {
				versions = append(versions, v)
			}
		}
		right := false
		for _, v := range versions {
			right = right || string(content(k, skep.PartKV, v, childSize(i))) == string(list[0].data)
		}
		require.True(t, right, "key %d must be one of versions %v", i, versions)
		if string(content(k, skep.PartKV, l.begunAt[i], childSize(i))) == string(list[0].data) && l.begunAt[i] > 0 {
			lastAck[i] = l.begunAt[i] // in doubt before, certain now
		}
		checked++
	}
	for n := range 200 { // what there is of the cache is right
		all := roundKeys(round+1000, n)
		list, err := fetch(ctx, s, skep.Chain{Scope: cache, Keys: all})
		require.NoError(t, err)
		for i, g := range list {
			if g.err == nil {
				require.True(t, string(content(all[i], skep.PartKV, 1, 4*childSize(i))) == string(g.data), "cache chain %d, block %d", n, i)
			} else {
				require.NotEqual(t, skep.Damaged, skep.KindOf(g.err))
			}
		}
	}
	st, err := s.Stats(ctx)
	require.NoError(t, err)
	require.Zero(t, st.Damaged)
	require.False(t, strings.HasPrefix(st.State, "failed"), st.State)
	t.Logf("round %d: %d lines from the child, %d blocks acknowledged and checked, backend %s", round, l.lines, checked, st.Backend)
}
