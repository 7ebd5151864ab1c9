package units

import (
	"bytes"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSizesAndRatesAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "64KiB": 64 << 10, "1.5GiB": 3 << 29, "2GB": 2e9, " 7 TB ": 7e12, "12B": 12, "0.5KB": 500,
	} {
		n, err := ParseSize(text)
		require.NoError(t, err, text)
		assert.EqualValues(t, want, n, text)
		again, err := ParseSize(n.String())
		require.NoError(t, err)
		assert.Equal(t, n, again, "%s is printed as %s", text, n)
		for _, rate := range []string{text, text + "/s"} {
			var r Rate
			require.NoError(t, r.Set(rate), rate)
			assert.EqualValues(t, want, r, rate)
		}
	}
	for _, text := range []string{"", "x", "-1", "1XB", "4611686018427387904", "1e30GB", "NaN", "Inf"} {
		_, err := ParseSize(text)
		require.Error(t, err, text)
		require.Error(t, new(Rate).Set(text), text)
	}
	assert.Equal(t, "3840GB", Size(3_840_000_000_000).String())
	assert.Equal(t, "200MB/s", Rate(200_000_000).String())
	assert.Equal(t, "1234567", Size(1234567).String())
}

// A flag that got another name is set by its older name, too, which is told on standard error, and which no help shows.
func TestOlderNamesOfFlags(t *testing.T) {
	t.Parallel()
	var size int64
	var said bytes.Buffer
	fl := pflag.NewFlagSet("test", pflag.ContinueOnError)
	SizeVar(fl, &size, "block-size", 64<<10, "payload of a block", "block-bytes")
	assert.EqualValues(t, 64<<10, size)
	require.NoError(t, fl.Parse([]string{"--block-size", "1MiB"}))
	Tell(fl, &said)
	assert.EqualValues(t, 1<<20, size)
	assert.Empty(t, said.String())
	require.NoError(t, fl.Parse([]string{"--block-bytes", "8192"}))
	assert.EqualValues(t, 8192, size)
	Tell(fl, &said)
	assert.Equal(t, "--block-bytes is --block-size now; the next release takes only that\n", said.String())
	assert.NotContains(t, fl.FlagUsages(), "block-bytes")
	assert.Contains(t, fl.FlagUsages(), "--block-size size   payload of a block (default 64KiB)")
}
