package gpu_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
)

// The time of a step reckoned by hand.
func TestTotal(t *testing.T) {
	t.Parallel()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, tt := range []struct {
		buffers, layers int
		cost            gpu.Cost
		exposed         time.Duration
	}{
		{1, 4, gpu.Cost{QKV: ms(1), Attention: ms(4), FFN: ms(5)}, 0},
		// The first load is seen except beside the first QKV; the others hide in FFN and QKV.
		{1, 4, gpu.Cost{QKV: ms(1), Attention: ms(4), FFN: ms(5), Load: ms(6)}, ms(5)},
		// One more than they hide: it shows at each of four layers.
		{1, 4, gpu.Cost{QKV: ms(1), Attention: ms(4), FFN: ms(5), Load: ms(7)}, ms(6 + 3)},
		// Two buffers hide it in the whole layer.
		{2, 4, gpu.Cost{QKV: ms(1), Attention: ms(4), FFN: ms(5), Load: ms(10)}, ms(9)},
		// The last store shows after the last attention and FFN, if it is longer.
		{1, 1, gpu.Cost{QKV: ms(1), Attention: ms(4), FFN: ms(5), Store: ms(20)}, ms(11)},
	} {
		s, err := gpu.NewSchedule(tt.buffers)
		require.NoError(t, err)
		total, compute := s.Total(1, tt.layers, tt.cost)
		require.Equal(t, tt.exposed, total-compute, "%+v", tt)
	}
	// With the first layer resident the first load there is hides in all of it and the next projection.
	for resident, exposed := range map[int]time.Duration{0: ms(20 + 3*15), 1: ms(10 + 2*15), 3: 0, 4: 0} {
		s, err := gpu.NewSchedule(1)
		require.NoError(t, err)
		s.Resident = resident
		total, compute := s.Total(1, 4, gpu.Cost{QKV: ms(1), Attention: ms(4), FFN: ms(5), Load: ms(21)})
		require.Equal(t, exposed, total-compute, "%d resident", resident)
	}
	_, err := gpu.NewSchedule(0)
	require.ErrorIs(t, err, skep.Invalid)
}

// Where layers are with the first of five resident and two buffers: each step has four that go through them.
func TestBuffer(t *testing.T) {
	t.Parallel()
	s, err := gpu.NewSchedule(2)
	require.NoError(t, err)
	s.Resident = 1
	var got []int
	for n := range 15 {
		b, streamed := s.Buffer(n, 5)
		if !streamed {
			b = -1
		}
		got = append(got, b)
	}
	require.Equal(t, []int{-1, 0, 1, 0, 1, -1, 0, 1, 0, 1, -1, 0, 1, 0, 1}, got)
	s.Resident = -1
	_, err = gpu.NewPipeline(nil, s, nil, nil, nil)
	require.ErrorIs(t, err, skep.Invalid)
}
