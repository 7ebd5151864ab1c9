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
	"github.com/skepkv/skep/tools/internal/command"
)

func TestGPUStatus(t *testing.T) {
	t.Parallel()
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
	require.Equal(t, command.OK, Main(context.Background(), []string{"gpu", "status", "--socket", socket, "--json"}, nil, &out, &errs), errs.String())
	var r gpuStatusResult
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.Len(t, r.Lenders, 1)
	s := r.Lenders[0]
	require.Equal(t, []any{"qwen3-8b", true, 4, 1, 2, 2, 1}, []any{s.Name, s.Simulated, s.Units, s.Floor, s.Border, s.Offer, s.Used})

	out.Reset()
	require.Equal(t, command.OK, Main(context.Background(), []string{"gpu", "status", "--socket", socket}, nil, &out, &errs))
	require.Contains(t, out.String(), "simulated GPU 0")
	require.Equal(t, command.Input, Main(context.Background(), []string{"gpu", "status"}, nil, &out, &errs))
	require.Equal(t, command.TryAgain, Main(context.Background(), []string{"gpu", "status", "--socket", socket + "x"}, nil, &out, &errs))
	require.Contains(t, errs.String(), "next: check that skep-gpu lend runs")
}

// Who lends to whom, and what is on its way back.
func TestPrintGPUStatus(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	printGPUStatus(&out, []loan.Status{{
		Name: "qwen3-8b", Device: "GPU 1", PID: 40, UnitBytes: 4 << 20, Units: 64, Floor: 8, Border: 16, Offer: 24, Used: 120, Epoch: 7,
		Counts: loan.Counts{Reclaims: 3, ReclaimMost: 1.25, Ended: 1, Died: 2},
		Borrowers: []loan.BorrowerStatus{
			{Number: 0, Name: "qwen3-32b", PID: 41, State: "gives back", Epoch: 12, From: 16, To: 40, Keeps: 24, LeaseMs: 900},
			{Number: 1, Name: "lwm", PID: 42, State: "holds", Epoch: 3, From: 40, To: 64, Keeps: 40, LeaseMs: 800},
		},
	}})
	require.Equal(t, `lender    pid  GPU    units  of MiB  floor  border  offered from  own blocks  moves  reclaims  longest ms  ended  died
qwen3-8b  40   GPU 1  64     4       8      16      24            120         7      3         1.2         1      2

lender    borrower   pid  state       units                          agreement  lease ms
qwen3-8b  qwen3-32b  41   gives back  16 to 40, gives back up to 24  12         900
qwen3-8b  lwm        42   holds       40 to 64                       3          800
`, out.String())
}
