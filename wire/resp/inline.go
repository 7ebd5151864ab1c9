package resp

import "encoding/hex"

// words parts a line into words, as Redis does: by blanks, "..." with \n, \r, \t, \b,
// \a and \xHH, '...' with \'. A quote that is open at the end, or a closing one that
// more follows, is an error. The words lie in the line's own memory: none is longer than
// what it was made of.
func words(line []byte) (out [][]byte, ok bool) {
	for i, to := 0, 0; ; {
		for i < len(line) && blank(line[i]) {
			i++
		}
		if i == len(line) {
			return out, true
		}
		from := to
		for i < len(line) && !blank(line[i]) {
			if q := line[i]; q == '"' || q == '\'' {
				if i, to = unquote(line, i+1, to, q); i < 0 || i < len(line) && !blank(line[i]) {
					return nil, false
				}
				break
			}
			line[to] = line[i]
			i, to = i+1, to+1
		}
		out = append(out, line[from:to:to])
	}
}

// unquote copies what lies between quotes, from line[i] on, to line[to], and gives the
// places after both; -1 when there is no closing quote.
func unquote(line []byte, i, to int, quote byte) (int, int) {
	for i < len(line) && line[i] != quote {
		c, n := line[i], 1
		if c == '\\' && i+1 < len(line) {
			c, n = escaped(line[i:], quote)
		}
		line[to] = c
		i, to = i+n, to+1
	}
	if i == len(line) {
		return -1, to
	}
	return i + 1, to
}

// escaped gives the byte that a backslash and what follows it stand for, and their number.
func escaped(s []byte, quote byte) (byte, int) {
	if quote == '\'' {
		if s[1] == '\'' {
			return '\'', 2
		}
		return '\\', 1
	}
	var b [1]byte
	if s[1] == 'x' && len(s) >= 4 {
		if _, err := hex.Decode(b[:], s[2:4]); err == nil {
			return b[0], 4
		}
	}
	switch s[1] {
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'b':
		return '\b', 2
	case 'a':
		return '\a', 2
	}
	return s[1], 2
}

func blank(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' || c == 0 }
