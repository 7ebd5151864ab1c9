package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// What skep_open is given holds a token: no error repeats it, wherever the mistake is.
func TestErrorsOfOpenDoNotRepeatTheToken(t *testing.T) {
	t.Parallel()
	const token = "secret-token-0123456789"
	for _, text := range []string{
		`{"connect": "127.0.0.1:1", "token": "` + token + `", "nonesuch": 1}`,
		`{"connect": "127.0.0.1:1", "token": "` + token + `"`,
		`{"connect": 7, "token": "` + token + `"}`,
		`{"dir": "/nonesuch", "connect": "127.0.0.1:1", "token": "` + token + `"}`,
		`{"connect": "nonesuch:", "token": "` + token + `"}`,
	} {
		_, err := open(t.Context(), text)
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), token)
	}
	_, err := open(t.Context(), "{")
	require.ErrorIs(t, err, skep.Invalid)
}
