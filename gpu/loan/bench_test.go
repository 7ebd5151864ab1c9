//go:build linux

package loan_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/gpu/sim"
)

// How long a lender waits for a unit that a live borrower is using: another process that
// restores from it all the time. The GPUs are simulated, so a copy takes what the simulation
// takes to carry it out; the rest, processes, sockets and the tier, is real.
func BenchmarkReclaim(b *testing.B) {
	so := sim.H20()
	so.Devices, so.MemoryBytes = 1, 16<<20
	w, err := sim.New(so)
	require.NoError(b, err)
	socket := filepath.Join(b.TempDir(), "lender")
	l, err := loan.Lend(loan.LenderOptions{Socket: socket, Device: w.Device(0), Unit: unit, Units: units, Lease: patience, Reclaim: patience})
	require.NoError(b, err)
	defer func() { require.NoError(b, l.Close()) }()
	c := spawn(b, socket)
	require.NoError(b, l.Move(b.Context(), 4))
	c.holding(24)
	var took []time.Duration
	for b.Loop() {
		before := l.Status()
		began := time.Now()
		require.NoError(b, l.Move(b.Context(), before.Border+1))
		took = append(took, time.Since(began))
		require.NoError(b, l.Move(b.Context(), before.Border))
		for l.Status().Borrowers[0].From != before.Border { // it has it again
			time.Sleep(100 * time.Microsecond)
		}
	}
	slices.Sort(took)
	for _, p := range []struct {
		name  string
		share float64
	}{{"p50-ms", .5}, {"p99-ms", .99}, {"most-ms", 1}} {
		b.ReportMetric(float64(took[min(len(took)-1, int(p.share*float64(len(took))))])/1e6, p.name)
	}
	c.quit()
}
