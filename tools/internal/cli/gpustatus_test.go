//go:build linux

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
)

func TestGPUStatus(t *testing.T) {
	so := sim.H20()
	so.MemoryBytes = 16 << 20
	w, err := sim.New(so)
	require.NoError(t, err)
	unit := elastic.Unit{Bytes: elastic.Granule, LenderBlock: elastic.Granule, BorrowerBlock: elastic.Granule, Lender: 1, Borrower: 1}
	socket := filepath.Join(t.TempDir(), "lender")
	l, err := loan.Lend(loan.LenderOptions{Socket: socket, Name: "qwen3-8b", Device: w.Device(0), Unit: unit, Units: 4, Floor: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	_, ok := l.Alloc()
	require.True(t, ok)
	require.NoError(t, l.Move(t.Context(), 2))

	var out, errs bytes.Buffer
	require.Equal(t, exitOK, Main(context.Background(), []string{"gpu", "status", "--socket", socket, "--json"}, nil, &out, &errs), errs.String())
	var r gpuStatusResult
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.Len(t, r.Lenders, 1)
	s := r.Lenders[0]
	require.Equal(t, []any{"qwen3-8b", true, 4, 1, 2, 2, 1}, []any{s.Name, s.Simulated, s.Units, s.Floor, s.Border, s.Offer, s.Used})

	out.Reset()
	require.Equal(t, exitOK, Main(context.Background(), []string{"gpu", "status", "--socket", socket}, nil, &out, &errs))
	require.Contains(t, out.String(), "simulated GPU 0")
	require.Equal(t, exitInput, Main(context.Background(), []string{"gpu", "status"}, nil, &out, &errs))
	require.Equal(t, exitInput, Main(context.Background(), []string{"gpu", "status", "--socket", socket + "x"}, nil, &out, &errs))
	require.Contains(t, errs.String(), "next: check that skep-gpu lend runs")
}
