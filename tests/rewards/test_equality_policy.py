"""The equality policy, case by case: docs/verification.md in examples, all invented or commonplace."""

import pytest

from gtpo.rewards.equality.comparing.decide import decide

EQUAL_IN_VALUE = ("CORRECT", "UNEVALUATED")

EQUAL = r"""
12 cm | 12
12\text{ cm} | 12
12 | 12\text{ cm}
12 \mathrm{~cm} | 12
12\,\mathrm{cm}^2 | 12
12\text{ square units} | 12
\frac12 | 0.5
\frac{1}2 | 1/2
\sqrt3 | \sqrt{3}
\dfrac{3}{4} | \tfrac{3}{4}
3\frac{1}{2} | \frac{7}{2}
3\frac12 | 3.5
3 1/2 | 7/2
-2\frac{1}{3} | -\frac{7}{3}
50\% | 0.5
50\% | 50\%
\$1,000 | 1000
\$10 | 10
10 dollars | 10
1\,234 | 1234
1{,}234 | 1234
12,\!345 | 12345
1,234,567 | 1234567
74^\circ | 74
74° | 74
74^{\circ} | 74
90 degrees | 90^\circ
[90] | 90
\{1,2,3\} | \{3,2,1\}
1,2,3 | 3, 2, 1
(1,2) | (1, 2)
(-\infty, 2) \cup (3, \infty) | (3,\infty)\cup(-\infty,2)
[1,2] \cup [2,3] | [1,3]
\begin{pmatrix}1\\2\end{pmatrix} | \begin{bmatrix}1\\2\end{bmatrix}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right]
x=2 | 2
2 | x = 2
y = 2x+1 | 2x - y + 1 = 0
x > 3 | (3, \infty)
3 < x | x > 3
x \in [2,5] | [2,5]
2 \le x \le 5 | [2,5]
\pm 3 | 3, -3
-3, 3 | \pm3
204_5 | 204_{5}
204_{\text{five}} | 204_5
(204)_5 | 204_5
2+3i | 3i+2
\infty | +\infty
1.2\times10^5 | 120000
1.2 \cdot 10^{5} | 120000
1.2e5 | 120000
\text{Monday} | Monday
monday | \text{Monday}
\text{even} | even
C | \text{(C)}
(C) | C
\textbf{(C) } 12 | C
\textbf{(C) } 12 | 12
\textbf{(C)}\ 12 | 12
\text{C} | C
C. 12 | C
C) 12 | 12
(x+1)^2 | x^2+2x+1
\sin^2 x + \cos^2 x | 1
\sin 2x | 2 \sin x \cos x
b + a | a + b
ba | ab
073 | 73
27.0 | 27
.5 | 0.5
\frac{-1}{2} | -\frac{1}{2}
\frac{1}{-2} | -\frac12
2^{10} | 1024
\sqrt{8} | 2\sqrt{2}
\frac{1}{\sqrt{2}} | \frac{\sqrt{2}}{2}
\sqrt[3]{8} | 2
\log_2 8 | 3
\ln e^2 | 2
e^{i\pi} | -1
5! | 120
\binom{5}{2} | 10
|{-3}| | 3
\left|-3\right| | 3
\lfloor 3.7 \rfloor | 3
0.\overline{3} | \frac{1}{3}
0.1\overline{6} | 1/6
1:2 | 2:4
3 : 4 | 3:4
\frac{3}{4} | 3:4
12:30 | 12:30
\text{12:30 PM} | 12:30 p.m.
$\frac{1}{2}$ | 1/2
\(\frac{1}{2}\) | 1/2
\[ 5 \] | 5
The answer is 5 | 5
the answer is $5$. | 5
**5** | 5
5. | 5
x = 5 \text{ or } x = 3 | 3, 5
x=3 and x=5 | \{3,5\}
(x,y) = (1,2) | (1,2)
x=1, y=2 | (1,2)
x = 1, y = 2 | y=2, x=1
f(x) = x^2 | x^2
f(t)=t^2 | f(x) = x^2
33.333333 | \frac{100}{3}
5 \text{ million} | 5000000
5 million dollars | 5{,}000{,}000
12 apples | 12
12 dollars per week | 12
\frac{\pi}{2} | \pi/2
\frac{1}{2}\pi | \frac{\pi}{2}
6\sqrt{3}\text{ cm} | 6\sqrt{3}
\mathbf{i} + 2\mathbf{j} | 2\mathbf{j}+\mathbf{i}
\mathbb{R} | (-\infty, \infty)
\emptyset | \varnothing
\{\} | \emptyset
\mathbb{R} \setminus \{0\} | (-\infty,0)\cup(0,\infty)
\{x \mid x > 3\} | (3,\infty)
x \ne 3 | (-\infty,3) \cup (3,\infty)
|x| < 2 | (-2,2)
\frac{a}{b} | a/b
a^{-1} | \frac{1}{a}
x^{1/2} | \sqrt{x}
10\sqrt[3]{2} | 10 \cdot 2^{1/3}
\frac{x^2-1}{x-1} | x+1
\text{no} | No
\text{Yes} | yes
five | 5
2x = 6 | x = 3
\tan^{-1}(1) | \frac{\pi}{4}
\arctan 1 | \pi/4
\cos(\pi/3) | 1/2
\boxed{5} | 5
\boxed{\frac{1}{2}} | 0.5
-\frac{1}{2} | −1/2
1 000 000 | 1000000
$12$ and $13$ | 12, 13
(a+b)(a-b) | a^2-b^2
2\cdot3\cdot5 | 30
2\times3 | 6
(3) | 3
{3} | 3
1/2x | \frac{x}{2}
4\pi\text{ cm}^2 | 4\pi
x^2+y^2=25 | y^2 + x^2 = 25
2x+3y=6 | 4x+6y = 12
3x < 6 | x < 2
0 < x < 1 | (0,1)
1 \leq x < 5 | [1,5)
(1,2,3) | [1,2,3]
1 \text{ and } 2 | 1, 2
1 and 2 | 2, 1
\text{1 and 2} | 1,2
\sum_{k=1}^{10} k | 55
\frac{n(n+1)}{2} | \frac{n^2+n}{2}
n! | n!
2^{n+1} | 2 \cdot 2^n
\overline{AB} | \overline{AB}
AB | AB
\triangle ABC | \triangle ABC
50 percent | 50\%
-0.5 | -\frac{1}{2}
+5 | 5
--5 | 5
\frac{2}{4} | \frac{1}{2}
12 \text{ o'clock} | 12
5 \text{ units}^2 | 5
3.0 \times 10^{8} | 3 \times 10^8
\frac{\sqrt{3}}{3} | \frac{1}{\sqrt{3}}
\cot x | \frac{\cos x}{\sin x}
x\geq 2 | [2,\infty)
\left(\frac{2}{5},\frac{5}{3}\right] | (0.4,1.6667]
\frac{9}{2} | 4.5
k=5 | k = 5
1,000 | 1000
\text{2 hours} | 2
-1 \pm \sqrt{2} | -1-\sqrt2, -1+\sqrt2
\frac{1 \pm \sqrt{5}}{2} | \frac{1+\sqrt5}{2}, \frac{1-\sqrt5}{2}
\text{\$5} | 5
5\text{ (mod 7)} | 5 \pmod 7
x \equiv 5 \mod 7 | 5 \pmod{7}
1.50 | 1.5
\$1.50 | 1.5
$1.50$ | 1.5
\$ 1.50 | \frac{3}{2}
\text{x} | x
\cfrac{1}{2} | 0.5
2/3 | \frac{2}{3}
2 / 3 | \frac{2}{3}
x^{2} + 1 | x^2+1
x**2+1 | x^2+1
sqrt(2)/2 | \frac{\sqrt{2}}{2}
2*sqrt(3) | 2\sqrt{3}
pi/2 | \frac{\pi}{2}
\frac{5\pi}{6} \text{ radians} | 5\pi/6
(−7, 4) | (-7,4)
3,4 | (3,4)
\langle 1,2 \rangle | (1,2)
\displaystyle \frac{1}{2} | 1/2
1 \frac{3}{4} | 1.75
\text{December 5} | December 5
11\!\!\frac{1}{2} | 11.5
\left( 3, \frac{\pi}{2} \right) | (3,\frac{\pi}{2})
\begin{pmatrix} -1/4 \\ 7/4 \end{pmatrix} | \begin{pmatrix} -\frac{1}{4} \\ \frac{7}{4} \end{pmatrix}
\frac{\frac{1}{2}}{3} | 1/6
1\text{ hour and }30\text{ minutes} | 1\text{ hour and }30\text{ minutes}
x^3 + 3x - 6 | 3x + x^3 - 6
\frac {1}{2} | \frac{1}{2}
6 \text{ and } 8 | 8, 6
\sec^2 t | \tan^2 t + 1
2\ln x | \ln x^2
\sqrt{x^2} | |x|
f(x) = 3x | 3x
(p, q) = (1, 4) | (1, 4)
x \in [0, 2] | [0, 2]
2x + 4y = 6 | y = (3 - x)/2
\sin 30^\circ | \frac{1}{2}
x_1 = 5, x_2 = 8 | 8, 5
x = 5, y = 8 | (5, 8)
3:4 | 6:8
x=\frac{\pi}{4}+n\pi, n\in\mathbb{Z} | \frac{\pi}{4}+n\pi
\begin{pmatrix}1\\2\\3\end{pmatrix} | (1,2,3)
[[1,2],[3,4]] | \begin{pmatrix}1&2\\3&4\end{pmatrix}
{n \choose 2} | \frac{n(n-1)}{2}
f^{-1}(x) = \frac{x-3}{2} | \frac{x-3}{2}
\frac{dy}{dx} = 2x | 2x
5/2 \text{ or } 2.5 | 2.5
12 m | 12
12 m | 12\text{ meters}
Option A | A
\textbf{(A)}\ \frac{1}{2} | \frac12
\vec{a}+\vec{b} | \vec{b}+\vec{a}
|x| > 1 | (-\infty, -1) \cup (1, \infty)
x<-1 \text{ or } x>1 | (-\infty,-1)\cup(1,\infty)
(-1,1) \setminus \{0\} | (-1, 0) \cup (0, 1)
\sum_{i=1}^n a_i | \sum_{k=1}^n a_k
C = 2\pi r | 2 r \pi
"""

UNEQUAL = r"""
120 | 12
12 | 120
1 | 2
0.5 | 0.05
12 cm | 12 m
5 hours | 5 minutes
(1,2) | (2,1)
[1,2] | (1,2)
[1,2) | (1,2]
(1,2) | (1,3)
\{1,2\} | \{1,3\}
1,2 | 1,2,3
x=2 | x=3
x=2 | y=2
\frac{1}{2^{99}} | \frac{1}{2^{98}}
\frac{1}{2^{99}} | 0
10^{-20} | 0
4\sqrt{2} | 4
1-\frac1{\mathrm e} | 1+\frac1{\mathrm e}
\pi | 3
\frac{1}{3} | 0.3
0.33 | \frac13
2.54 | 2.5
12.04 | 12.0
27.04 | 27.0
8 | 7.78
C | B
(C) 12 | (D) 12
(D) 12 | C
12 | C
\text{even} | odd
\text{Monday} | Tuesday
x > 3 | x \ge 3
x < 3 | x > 3
x>3 | [3,\infty)
\pm 3 | 3
3 | \pm 3
204_5 | 204_6
204_5 | 54
2+3i | 2-3i
\infty | -\infty
1.2\times10^5 | 1.2\times 10^4
x+1 | x+2
(x+1)^2 | x^2+1
\sin x | \cos x
\sqrt{x} | x
AB | CD
2^{10} | 2^{11}
2 3 | 6
23 | 2 3
3 \frac{1}{2} | \frac{3}{2}
1:2 | 2:1
12:30 | 1:30
y=2x+1 | y = 2x-1
x=5 | 5x
5x | 5
7 | 7 = x+y
0 | x^2+y^2=0
not 5 | 5
5 or 6 | 5
5 or 6 | 6
less than 5 | 5
5 or more | 5
at least 5 | 5
no | on
1,234 | 1.234
1,2 | 12
(1,234) | 1234
48, 125 | 48125
5 million | 5
5 thousand | 5
-5 | 5
5 | -5
f(x)=x^2 | f(x)=x^3
\frac{1}{0} | 5
\log 100 | 3
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}2\\1\end{pmatrix}
\begin{pmatrix}1&2\end{pmatrix} | \begin{pmatrix}1\\2\end{pmatrix}
\emptyset | 0
\{0\} | \emptyset
(-\infty,2) | (-\infty,2]
[1,2]\cup[3,4] | [1,4]
\frac{x}{y} | \frac{y}{x}
2x+3y=6 | 2x+3y=7
3x>6 | x<2
-x > 1 | x > -1
10^{10^{10}} | 10
a | b
\overline{AB} | \overline{CD}
5\text{ p.m.} | 5\text{ a.m.}
\text{5:00 PM} | \text{5:00 AM}
the value of x such that x=1 | 1
\frac{1}{2}, \frac{1}{3} | \frac{1}{2}
undefined | 0
\text{undefined} | 0
none | 0
1e5 | 15
\sqrt[3]{2} | 3\sqrt{2}
x_1 | x_2
1/2/3 | 3/2
(1,2),(3,4) | (1,2),(4,3)
6^{\circ}\text{C} | 6^{\circ}\text{F}
0.999999999 | 1
99999999 | 100000000
123456789.0000001 | 123456789
\text{10 cents} | \$10
print(5) | 5
5 # 6 | 5
1 = 2 | 2 = 3
\text{The answer is } 5 \text{ but not } 6 | 6
x=1,2 | 1
\text{(A) and (B)} | A
AB | A
A, B | A
x^2=4 | x=2
1 - 1 | 2
n! | n
2 \sec x | 2
2 \sec x | 2 \sec y
2 tan x | 2 tan y
x > 3 | y > 3
0<f(x)<1 | 0<f(y)<1
5:00 | 5:000
115,00 | 115,000
115,0000 | 115,000
-\text{orange} | \text{orange}
x-y | xy
aB | Ab
3.5 apples | 35 apples
x=1 | x=1,2
(1,2),(3,4) | (1,2)
12 m | 12 cm
12x | 12
f(x) | f(y)
\sqrt{x^2} | x
\sin 30 | \frac12
\sqrt{a+b} | \sqrt{a}+\sqrt{b}
3,5 | 3.5
1,000 | 1.000
x \in (0,1] | (0,1)
2x + C | 3x + C
2\frac{7}{4} | \frac{15}{4}
5, 5 | 5
1, 1, 2 | 1, 2
5.0000001 | 5
"""

# (prediction, gold, verdict): where the gold's form decides, and the other way round need not hold.
DIRECTED = [
    (r"50\%", "50", False),
    ("50", r"50\%", True),
    ("0.5", r"50\%", True),
    ("m+n = 142", "142", True),
    ("142", "m+n = 142", False),
    ("x+y=5", "5", True),
    ("5", "x+y=5", False),
    (r"\frac{100}{3}", "33.3", True),
    ("33.3", r"\frac{100}{3}", False),
    (r"\pi", "3.14", True),
    ("3.14", r"\pi", False),
    (r"\sqrt{2}", "1.41", True),
    ("1.41", r"\sqrt{2}", False),
    ("0.333", r"\frac{1}{3}", False),
    ("0.33333", r"\frac{1}{3}", True),
    ("0.125", r"\frac{1}{8}", True),
    ("0.12501", r"\frac{1}{8}", False),
    ("16386.169", "16386.17", True),
    ("16386.17", "16386.169", False),
    ("7.8", "7.78", False),
    (r"\frac{200}{3}", "66.7", True),
    ("81.4727", "81.47", True),
    ("1.66667", r"\frac{5}{3}", True),
    ("1.67", r"\frac{5}{3}", False),
    ("2.2360679", r"\sqrt{5}", False),
    ("m+n = 31", "31", True),
    ("12,75", "12.75", True),
    (r"x = 7/3 \approx 2.33", "7/3", True),
]


def pairs(table: str) -> list[tuple[str, str]]:
    return [tuple(line.rsplit(" | ", 1)) for line in table.strip().splitlines()]  # type: ignore[misc]


@pytest.mark.parametrize(("first", "second"), pairs(EQUAL))
def test_equal_both_ways(first: str, second: str) -> None:
    assert decide(first, second) in EQUAL_IN_VALUE
    assert decide(second, first) in EQUAL_IN_VALUE


@pytest.mark.parametrize(("first", "second"), pairs(UNEQUAL))
def test_unequal_both_ways(first: str, second: str) -> None:
    assert decide(first, second) not in EQUAL_IN_VALUE
    assert decide(second, first) not in EQUAL_IN_VALUE


@pytest.mark.parametrize(("prediction", "gold", "equal"), DIRECTED)
def test_the_gold_decides(prediction: str, gold: str, equal: bool) -> None:
    assert (decide(prediction, gold) in EQUAL_IN_VALUE) == equal


def test_boxes_that_stand_together_are_one_list() -> None:
    together = r"\boxed{3}, \boxed{4}"
    assert decide(together, "4, 3") == "CORRECT"
    assert decide(together, "4") == "INCORRECT"
    assert decide(together, "3") == "INCORRECT"
    assert decide(r"first \boxed{3} was a guess, then \boxed{4}", "3, 4") == "INCORRECT"


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("She sold 72 clips altogether.", "72"),
        ("It costs $1,250 in total", "1250"),
        ("The answer is 15 apples.", "15"),
        ("So the answer is $x = 3$.", "3"),
    ],
)
def test_a_sentence_with_one_number_gives_it(sentence: str, value: str) -> None:
    assert decide(sentence, value) == "CORRECT"


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("It is not 72 clips", "72"),
        ("Either 3 or 4 of them", "4"),
        ("The sum a+b = 1 holds here", "1"),
        ("From 3 to 5 clips", "5"),
        ("there are at least 7 clips", "7"),
        ("The answer is not 4", "4"),
    ],
)
def test_a_sentence_that_hedges_gives_nothing(sentence: str, value: str) -> None:
    assert decide(sentence, value) == "INCORRECT"


def test_small_numbers_have_no_absolute_tolerance() -> None:
    assert decide(r"\frac{1}{2^{99}}", r"2^{-99}") == "CORRECT"
    assert decide(r"\frac{\pi}{2^{99}}", r"\frac{\pi}{2^{98}}") == "INCORRECT"
    assert decide(r"\sqrt{2}\cdot\sqrt{3}-\sqrt{6}", "0") in EQUAL_IN_VALUE
    assert decide(r"10^{-50}\pi", "0") == "INCORRECT"
