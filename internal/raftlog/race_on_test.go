//go:build race

package raftlog

// raceDetector says whether the tests run under the race detector.
const raceDetector = true
