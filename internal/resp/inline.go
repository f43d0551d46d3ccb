package resp

// SplitArgs appends the words of an inline request to args, as Redis's
// sdssplitargs does: words are separated by white space; "double quotes" know
// \n \r \t \b \a and \xHH, 'single quotes' know \'; a quote may begin inside a
// word, and what follows the closing one must be white space. ok is false for
// unbalanced quotes. Words without quotes alias line.
func SplitArgs(args [][]byte, line []byte) (_ [][]byte, ok bool) {
	for pos := 0; ; {
		for pos < len(line) && isSpace(line[pos]) {
			pos++
		}
		if pos == len(line) {
			return args, true
		}
		end := pos
		for end < len(line) && !endsWord(line[end]) && line[end] != '"' && line[end] != '\'' {
			end++
		}
		if end == len(line) || endsWord(line[end]) {
			args = append(args, line[pos:end:end])
			pos = end
			if pos < len(line) {
				pos++
			}
			continue
		}
		word, next, closed := quotedWord(line, pos)
		if !closed {
			return args, false
		}
		args = append(args, word)
		pos = next
	}
}

// quotedWord reads the word at pos, which has quotes in it, into new memory.
func quotedWord(line []byte, pos int) (word []byte, next int, ok bool) {
	word = make([]byte, 0, len(line)-pos)
	for pos < len(line) {
		c := line[pos]
		switch {
		case endsWord(c):
			return word, pos + 1, true
		case c == '"' || c == '\'':
			word, pos, ok = quoted(word, line, pos+1, c)
			if !ok || pos < len(line) && !isSpace(line[pos]) {
				return nil, 0, false
			}
			return word, pos, true
		default:
			word = append(word, c)
			pos++
		}
	}
	return word, pos, true
}

// quoted reads up to the closing quote and says where the byte after it is.
func quoted(word, line []byte, pos int, quote byte) (_ []byte, next int, ok bool) {
	for pos < len(line) {
		c := line[pos]
		switch {
		case c == quote:
			return word, pos + 1, true
		case c == '\\' && quote == '\'' && pos+1 < len(line) && line[pos+1] == '\'':
			word = append(word, '\'')
			pos += 2
		case c == '\\' && quote == '"' && pos+3 < len(line) && line[pos+1] == 'x' &&
			hex(line[pos+2]) >= 0 && hex(line[pos+3]) >= 0:
			word = append(word, byte(hex(line[pos+2])<<4|hex(line[pos+3])))
			pos += 4
		case c == '\\' && quote == '"' && pos+1 < len(line):
			word = append(word, unescape(line[pos+1]))
			pos += 2
		default:
			word = append(word, c)
			pos++
		}
	}
	return nil, 0, false
}

func unescape(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'a':
		return '\a'
	}
	return c
}

func hex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// isSpace is C's isspace.
func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// endsWord is what ends a word outside quotes; vertical tab and form feed do
// not, although they are white space between words. A zero byte, where Redis
// stops reading the line, merely ends the word.
func endsWord(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == 0 }
