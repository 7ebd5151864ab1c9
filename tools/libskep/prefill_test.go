//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
)

// An emulated engine in C computes a prompt three times as long as its own memory holds, with the rest in memory
// that this process lends it (simulated GPUs), and gets what it gets with all of it in own memory. Where the lender's border
// moves all the time, too: then the lender finds its own bytes as it left them.
func TestPrefillInC(t *testing.T) {
	t.Parallel()
	lib := built(t)
	program := compiled(t, "testdata/prefill.c", lib, "-Wl,-rpath,"+filepath.Dir(lib))
	run := func(socket string, local, blocks, history, step, times int) (lines []string, most string) {
		cmd := exec.Command(program, t.TempDir(), socket, fmt.Sprint(local), fmt.Sprint(blocks), fmt.Sprint(history), fmt.Sprint(step), fmt.Sprint(times))
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		require.NoError(t, err)
		lines = strings.Split(strings.TrimSpace(string(out)), "\n")
		return lines[:len(lines)-1], lines[len(lines)-1]
	}
	const local, layers = 3, 4
	stream, regular := elastic.Divide(local*layers, layers, 8)
	longest := stream + regular
	require.Equal(t, 3*local, longest)

	_, most := run("-", local, local, 1, 1, 1)
	require.Contains(t, most, fmt.Sprint("must be ", local))
	want, _ := run("-", longest, longest, 4, 2, 1)

	l := lend4(t)
	require.NoError(t, l.Move(t.Context(), 1))
	got, most := run(l.socket, local, longest, 4, 2, 1)
	require.Equal(t, want, got)
	require.Contains(t, most, fmt.Sprint("must be ", longest))

	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- l.wander(stop) }()
	got, _ = run(l.socket, local, longest, 4, 2, 10)
	close(stop)
	require.NoError(t, <-stopped)
	require.Len(t, got, 10)
	for _, line := range got {
		require.Equal(t, want[0], line)
	}
	t.Logf("%d times, %d moves of the border", len(got), l.moves)
}

// arena lends up to four of five units of two of the engine's blocks each.
type arena struct {
	*loan.Lender
	t      *testing.T
	socket string
	stream gpu.Stream
	moves  int
}

var arenaUnit = elastic.Unit{Bytes: 64 << 10, LenderBlock: 48 << 10, BorrowerBlock: 32 << 10, Lender: 1, Borrower: 2}

func lend4(t *testing.T) *arena {
	so := sim.H20()
	so.Devices, so.MemoryBytes = 1, 16<<20
	w, err := sim.New(so)
	require.NoError(t, err)
	l := &arena{t: t, socket: filepath.Join(t.TempDir(), "lender")}
	l.Lender, err = loan.Lend(loan.LenderOptions{Socket: l.socket, Name: "model", Device: w.Device(0), Unit: arenaUnit, Units: 5, Floor: 1, Lease: time.Minute, Reclaim: time.Minute})
	require.NoError(t, err)
	l.stream, err = w.Device(0).NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		require.NoError(t, l.stream.Close())
	})
	return l
}

// wander moves the border up, writes to what it has back, sees that it stays as it is, and moves it down again.
func (l *arena) wander(stop chan struct{}) error {
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(time.Duration(rng.IntN(3000)) * time.Microsecond):
		}
		border := 2 + rng.IntN(4)
		mine := bytes.Repeat([]byte{byte(1 + rng.IntN(255))}, border*int(arenaUnit.Bytes))
		got := make([]byte, len(mine))
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := l.Move(ctx, border)
		if err == nil {
			l.stream.CopyIn(gpu.Place{Memory: l.Memory()}, mine)
			err = l.stream.Sync(ctx)
			time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
		}
		if err == nil {
			l.stream.CopyOut(got, gpu.Place{Memory: l.Memory()})
			if err = l.stream.Sync(ctx); err == nil && !bytes.Equal(mine, got) {
				err = fmt.Errorf("somebody wrote to the lender's units below %d", border)
			}
		}
		if err == nil {
			err = l.Move(ctx, 1)
		}
		cancel()
		if err != nil {
			return err
		}
		l.moves++
	}
}
