package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/schedule"
)

const source = `// Package store is an example.
package store

func (s *Store) close(ch chan int, done func()) (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.CompareAndSwap(0, 1) && s.n.Load() > 0 {
		ch <- 1
	}
	s.n.Add(2)
	n := s.n.Add(1)
	v, ok := s.table.Load(n)
	go func() {
		<-ch
		close(ch)
	}()
	select {
	case v := <-ch:
		done()
	default:
	}
	s.once.Do(func() { s.n.Store(3) })
	for s.n.Load() > 0 { // a comment stays
		s.idle.Wait() // so does this
	}
	return s.table.Load(v)
}
`

// Calls of package schedule stand wherever goroutines may meet, on the lines that were there.
func TestPlacesOfAFile(t *testing.T) {
	t.Parallel()
	var all []schedule.Place
	text, err := instrument("store/close.go", []byte(source), &all)
	require.NoError(t, err)
	was, is := strings.Split(source, "\n"), strings.Split(string(text), "\n")
	require.Len(t, is, len(was))
	var changed []string
	for i := range was {
		if was[i] != is[i] {
			changed = append(changed, strings.TrimSpace(is[i]))
		}
	}
	require.Equal(t, []string{
		`package store; import "github.com/skepkv/skep/store/schedule"`,
		`schedule.Pause(0); s.mu.Lock(); schedule.Pause(0)`,
		`defer schedule.Pause(1); defer s.mu.Unlock()`,
		`if schedule.After(5, s.state.CompareAndSwap(0, 1)) && schedule.After(6, s.n.Load()) > 0 {`,
		`schedule.Pause(7); ch <- 1; schedule.Pause(7)`,
		`schedule.Pause(2); s.n.Add(2); schedule.Pause(2)`,
		`n := schedule.After(8, s.n.Add(1))`,
		`go func() { schedule.Pause(3);`,
		`schedule.Pause(9); <-ch; schedule.Pause(9)`,
		`schedule.Pause(10); close(ch); schedule.Pause(10)`,
		`schedule.Pause(4); select {`,
		`case v := <-ch: schedule.Pause(11);`,
		`s.once.Do(func() { schedule.Pause(12); s.n.Store(3); schedule.Pause(12) })`,
		`for schedule.After(13, s.n.Load()) > 0 { // a comment stays`,
		`schedule.Pause(14); s.idle.Wait(); schedule.Pause(14) // so does this`,
	}, changed)
	require.Len(t, all, 15)
	require.Equal(t, schedule.Place{File: "store/close.go", Line: 7, Text: "s.state.CompareAndSwap(0, 1)"}, all[5])
}

// The build has places in every file where restores, puts, cleaning and closing meet, and none in what only tests use.
func TestPlacesOfTheEngine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n, err := write("../..", dir)
	require.NoError(t, err)
	list, err := schedule.Load(dir + "/places.json")
	require.NoError(t, err)
	require.Len(t, list, n)
	in := map[string]int{}
	for _, p := range list {
		in[p.File]++
	}
	for _, file := range []string{"store/internal/restore/retry.go", "store/internal/restore/session.go", "store/put.go", "store/internal/clean/run.go", "store/close.go", "store/internal/restore/join.go",
		"store/internal/space/opening.go", "store/catalog/catalog.go", "store/memory/arena.go", "store/device/core.go", "index/lease.go"} {
		require.NotZero(t, in[file], file)
	}
	for file := range in {
		require.NotContains(t, file, "fault")
		require.NotContains(t, file, "_test.go")
	}
}
