package resp

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/wire/auth"
)

// A line of words is parted as Redis 7 parts it.
func TestWordsOfALine(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"":                         nil,
		" \t\r\n":                  nil,
		"PING\r\n":                 {"PING"},
		"  SET  k\tv  \n":          {"SET", "k", "v"},
		`SET k "a b"`:              {"SET", "k", "a b"},
		`"" ''`:                    {"", ""},
		`"a\x41\n\"b\q\xg1\\"`:     {"aA\n\"bqxg1\\"},
		`'a\'b\n'`:                 {`a'b\n`},
		`a"b c"`:                   {"ab c"},
		`"\r\t\b\a\x00\xfF" "\x4"`: {"\r\t\b\a\x00\xff", "x4"},
		`plain\n back\slash 'q"q'`: {`plain\n`, `back\slash`, `q"q`},
	} {
		got, ok := words([]byte(line))
		assert.True(t, ok, line)
		var text []string
		for _, w := range got {
			text = append(text, string(w))
		}
		assert.Equal(t, want, text, line)
	}
	for _, line := range []string{`"a`, `'a`, `"a"b`, `'a'b`, `a"`, `"a\"`, `'a\'`, `"\`} {
		_, ok := words([]byte(line))
		assert.False(t, ok, line)
	}
}

// What Redis 7 answers to options and arguments that are wrong or go together, word for word.
func TestOddArguments(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	c := f.dial()
	incompatible := "-ERR NX and XX, GT or LT options at the same time are not compatible"
	for _, step := range [][2]string{
		{"SET k v EX 0", "-ERR invalid expire time in 'set' command"},
		{"SETEX k 0 v", "-ERR invalid expire time in 'setex' command"},
		{"SET k v", "+OK"},
		{"EXPIRE k 9223372036854775807", "-ERR invalid expire time in 'expire' command"},
		{"EXPIRE k 10 NX XX", incompatible}, {"EXPIRE k 10 NX GT", incompatible}, {"EXPIRE k 10 NX LT", incompatible},
		{"EXPIRE k 10 GT LT", "-ERR GT and LT options at the same time are not compatible"},
		{"EXPIRE k 10 FOO", "-ERR Unsupported option FOO"},
		{"EXPIRE k 10 XX LT", "0"}, {"EXPIRE k 100 NX NX", "1"}, {"EXPIRE k 10 XX GT", "0"}, {"EXPIRE k 200 GT XX", "1"}, {"EXPIRE k 50 XX LT", "1"},
		{"HELLO abc", "-ERR Protocol version is not an integer or out of range"},
		{"FLUSHDB EVERYTHING", "-ERR syntax error"}, {"EXISTS k", "1"}, {"FLUSHDB ASYNC", "+OK"}, {"EXISTS k", "0"},
	} {
		assert.Equal(t, step[1], c.words(step[0]), step[0])
	}
}

// A value on a line is a value: over the tenant's rate of bytes it is refused, as one that comes with its length is.
func TestInlineValuesAreRated(t *testing.T) {
	t.Parallel()
	clock := newClock()
	limits := map[string]auth.Limits{auth.DefaultTenant: {BytesPerSecond: 1 << 10}}
	d, err := auth.New(nil, limits, clock.read)
	require.NoError(t, err)
	c := serve(t, nil, Options{Auth: d}).dial()
	value := strings.Repeat("x", 1<<10)
	line := func(words string) string {
		_, err := io.WriteString(c, words+"\r\n")
		require.NoError(t, err)
		return c.reply()
	}
	require.Equal(t, "+OK", line("SET k "+value))
	require.Contains(t, line("SET k "+value), "-TRYAGAIN over the tenant's rate")
	require.Contains(t, line("MSET k "+value), "-TRYAGAIN over the tenant's rate")
	require.Contains(t, c.do("SET", "k", value), "-TRYAGAIN over the tenant's rate")
	clock.advance(time.Second)
	require.Equal(t, "+OK", line("MSET k "+value))
}
