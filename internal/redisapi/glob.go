package redisapi

// glob says whether s matches a Redis glob pattern: '*' and '?' as usual,
// [abc], [^abc], [a-c] and '\' before a byte that stands for itself. It decides
// exactly as Redis's stringmatchlen, its oddities included: an unclosed [ ends
// with the pattern, a range may be given backwards and compares signed bytes,
// and "*" does not match the empty string. foldCase ignores the case of ASCII.
func glob(pattern, s []byte, foldCase bool) bool {
	m := matcher{foldCase: foldCase}
	return m.match(pattern, s)
}

type matcher struct {
	foldCase bool
	// hopeless is set once the rest of the pattern after some '*' matches
	// nowhere in the rest of the string: then no longer match of an earlier
	// '*' can help, which keeps the search polynomial.
	hopeless bool
}

func (m *matcher) match(p, s []byte) bool {
	for len(p) > 0 && len(s) > 0 {
		switch p[0] {
		case '*':
			return m.star(p, s)
		case '?':
			p = p[1:]
		case '[':
			var in bool
			if in, p = m.class(p[1:], s[0]); !in {
				return false
			}
		default:
			if p[0] == '\\' && len(p) >= 2 {
				p = p[1:]
			}
			if m.fold(p[0]) != m.fold(s[0]) {
				return false
			}
			p = p[1:]
		}
		s = s[1:]
		if len(s) == 0 {
			for len(p) > 0 && p[0] == '*' {
				p = p[1:]
			}
		}
	}
	return len(p) == 0 && len(s) == 0
}

func (m *matcher) star(p, s []byte) bool {
	for len(p) > 1 && p[1] == '*' {
		p = p[1:]
	}
	if len(p) == 1 {
		return true
	}
	for ; len(s) > 0; s = s[1:] {
		if m.match(p[1:], s) {
			return true
		}
		if m.hopeless {
			return false
		}
	}
	m.hopeless = true
	return false
}

// class reads a class, p being what follows its '[', says whether c is in it
// and what follows it.
func (m *matcher) class(p []byte, c byte) (in bool, rest []byte) {
	not := len(p) > 0 && p[0] == '^'
	if not {
		p = p[1:]
	}
	for len(p) > 0 && p[0] != ']' {
		switch {
		case p[0] == '\\' && len(p) >= 2:
			in = in || p[1] == c
			p = p[2:]
		case len(p) >= 3 && p[1] == '-':
			low, high := int8(p[0]), int8(p[2])
			if low > high {
				low, high = high, low
			}
			at := int8(m.fold(c))
			in = in || int8(m.fold(byte(low))) <= at && at <= int8(m.fold(byte(high)))
			p = p[3:]
		default:
			in = in || m.fold(p[0]) == m.fold(c)
			p = p[1:]
		}
	}
	if len(p) > 0 {
		p = p[1:]
	}
	return in != not, p
}

func (m *matcher) fold(c byte) byte {
	if m.foldCase && c >= 'A' && c <= 'Z' {
		return c + ('a' - 'A')
	}
	return c
}

// literalPrefix is what every match of the pattern begins with.
func literalPrefix(pattern []byte) []byte {
	var prefix []byte
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '*' || c == '?' || c == '[':
			return prefix
		case c == '\\' && i+1 < len(pattern):
			i++
			prefix = append(prefix, pattern[i])
		default:
			prefix = append(prefix, c)
		}
	}
	return prefix
}
