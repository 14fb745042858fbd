"""Answers that look like the gold, or unlike it, and are not: signs, names, words before a number, copies, chains.

Verdicts of the real verifier in strict scoring, SymPy included. All invented. A line: answer || gold || problem.
"""

import pytest

from gtpo.rewards.extract import extract_answer
from gtpo.rewards.verify import Verdict, Verifier

INCORRECT = r"""
the product of \boxed{1} and 7+2-8 || 1 || What is 7+2-8?
300 \text{ letters} + 350 \text{ letters} || 650
300 \text{ letters} + 350 \text{ letters} = 651 \text{ letters} || 650
300 \text{ letters} + 350 \text{ letters} = 651 || 651
3 \text{ hundredths} + 2 \text{ hundredths} = 5 || 5
3 \text{ wrong} + 2 \text{ wrong} = 5 || 5
3 \text{ zorks} + 2 \text{ zorks} = 5 || 5
5 \text{ dozen} + 1 = 6 || 6
2 \text{ m} + 30 \text{ cm} = 32 \text{ cm} || 32
5 \text{ or } 6 = 6 || 6
5 - 1/2 || 11/2
10 - 3/4 || 10.75
1-1/4 || 5/4
[3 - 1/2, 4] || [7/2,4]
x \ge 3 - 1/2 || x \ge 7/2
x+3-1/2 || x+7/2
y=4x || y^2=4x
y^3=4x || y^2=4x
y^2=2x+3 || y=2x+3
y'=2x+3 || y=2x+3
x=8y || x^2=8y
x^4=8y || x^2=8y
x^2=5 || x=5
|x|=5 || x=5
|x| > 0 || (-\infty,\infty)
x/y=5 || x=5
\frac{1}{2}x=5 || x=5
\frac{x}{2}=5 || 5
f(x)=2x || f^{-1}(x)=2x
f^{-1}(x)=2x || f(x)=2x
f'(x)=2x || f(x)=2x
f(2x)=2x || f(x)=2x
p(2)=x^2+1 || p(x)=x^2+1
p(x)^2=x^2+1 || p(x)=x^2+1
r^2 = 2\cos\theta || r = 2\cos\theta
AB^2=4 || AB=4
g(t) = t^2 || f(x)=x^2
x \not\in [0,2] || [0,2]
not x in [0,2] || [0,2]
x \notin [0,2] || [0,2]
x \not\equiv 5 || 5
not x = 5 || 5
\pm x = 5 || x=5
\pm x = 5 || 5
\neg x = 5 || 5
x \text{ is not} = 5 || 5
wrong = 5 || 5
half of 20 || 20
She has half of 20 apples || 20
The profit is minus 12 || 12
the temperature is negative 12 degrees || 12
up to 20 || 20
He has under 4 dollars || 4
he has over 4 dollars || 4
It is below 12 || 12
it exceeds 4 || 4
it isnt 4 || 4
It is the square of 4 || 4
the square root of 4 || 4
reciprocal of 4 || 4
a multiple of 4 || 4
five plus 4 || 4
ten minus 4 || 4
six hundred 4 || 4
anything but 4 || 4
all but 4 || 4
none of 4 || 4
The answer could be any of 4 || 4
a number divisible by 4 || 4
One subtracted from 4 || 4
1 4 || 5
12 5 || 17
1 2 3 4 || 10
(4 5) || 9
4 \quad 5 || 9
2 3x || 6x
(x^2)' || x^2
(\cos x)' || \cos x
4' || 4
x+12_3 || x+12
\frac{3_5}{4} || 3/4
[1,2) \ldots || [1,2)
1, 2, 3, ... || 1,2,3
C. 12, D. 13 || C
C. D. || C
C: 12 D: 13 || C
a=3, c=3 || a=3
a=3, c=3 || 3
x=1 \text{ or } y=2 || (1,2)
\{x\}+1 || x+1
m+n = 30 = 31 || 31 || Find $m+n$.
x+2 = 5 || 5 || If $x+2=7$, what is $x$?
2x+2 = 5 || 5 || If $2x+2=12$, what is $x$?
x^2+y^2 = 4 || 4 || If $x^2+y^2=4$, what is the square of the radius?
x^2-5x+6=0 || x^2-5x+6
525\pi m || 525\pi
\emptyset || [1,2)
\emptyset || x > 3
y = 2z+3 || y = 2x+3 || What is the equation of the line?
£12 || 12 || Five identical boxes weigh 60 pounds together. How many pounds does each box weigh?
30 mph || 30 || A car uses 5 gallons of fuel for 150 miles. How many miles does it travel per gallon?
CE^2 = 7.2 || 7.2 || In the picture, what is the length?
BA || AB || Let $A$ and $B$ be matrices. Which matrix is the product?
A^2-B^2 || (A-B)(A+B) || Let $A$ and $B$ be matrices. What is it?
\{ \frac12, 0.3, \frac23 \} || 0.3, \frac12, \frac23 || List the numbers in increasing order, separated by commas.
0.454545 || 0.\overline{45} || Express $\frac{5}{11}$ as a repeating decimal.
25° || 25 || What percent of 80 is 20?
Vasya || Petya will receive the last token. || Then Petya and Vasya play. Who will get the last?
a, b, c || b < a < c || What is the order from smallest to largest?
(0,1) || [0,1] || What is the domain?
(0,2) || [0,1] || What is the increasing interval?
(3t,5t) || (3x,5x) || Find the pairs $(x,y)$.
18 || 17.95 || Approximately what percent is it?
119 || 117.95 || Approximately what percent is it?
118 || 117.95 || What is it?
all real numbers greater than 3 || [3,\infty) || What is the domain?
a=1, b=5 or a=5, b=2 || (1,5),(5,1) || Find all ordered pairs $(a,b)$ of positive integers.
w=16, d=4 || 16,3 || Find the values of $w$ and $d$, respectively.
AB || A, C || Which of these? (A) 1 (B) 2 (C) 3
①② || ①, ③ || Which are right?
①③④ || ①③ || Which are right?
"""

UNSIMPLIFIED = r"""
5 - 1/2 || 9/2
\int_0^1 2 x dx || 1
\frac{d}{dx} x^3 || 3x^2 || Differentiate $x^3$.
\frac{d}{dx} x^3 || 3x^2
\int_0^x t^2 dt || \frac{x^3}{3}
\sum_{k=1}^n k || \frac{n(n+1)}{2}
2(x+1)^2/2 || x^2+2x+1 || Expand $(x+1)^2$.
(x+1)^2 + y - y || x^2+2x+1 || Expand $(x+1)^2$.
\frac{x^2-1}{x-1}+0x || x+1 || Simplify $\frac{x^2-1}{x-1}$.
2(x^2+x-6)/2 || (x-2)(x+3) || Factor $x^2+x-6$.
x^2+2x+1 = (x+1)^2 || x^2+2x+1 || Expand $(x+1)^2$.
17 \bmod 5 || 2
"""

CORRECT = r"""
300 \text{ letters} + 350 \text{ letters} = 650 \text{ letters} || 650
3 \text{ boxes} \times 5 \text{ pens/box} = 15 \text{ pens} || 15
0.5 \text{ hours} + 1.5 \text{ hours} = 2 \text{ hours} || 2
1 - 1/4 = 3/4 || 3/4
10 - 3/4 = 9.25 || 9.25
P = 1 - 1/4 = 3/4 || 3/4
1 - \frac{1}{1024} || 1 - 1/1024
3 1/2 || 7/2
y=\frac{x^2}{8} || x^2=8y
x=y^2/4 || y^2=4x
4x = y^2 || y^2=4x
|AB|=4 || AB=4
m\angle A = 30^\circ || \angle A = 30^\circ
f^{-1}(x)=2x || 2x
P(A)=\frac12 || 1/2
f(2) = 7 || 7
f(2) = 7 || f(2)=7
AB^2=4 || 4
\frac{a}{b} = 5 || 5
\frac{dy}{dx} = 2x || 2x
g(t) = t^2 || g(x)=x^2
y=2x+1 || 2x+1
\text{Number of apples} = 5 || 5
\text{the answer} = 5 || 5
\text{Area} = 5 || 5
She sold 72 clips || 72
a total of 72 clips || 72
10 different ways || 10
x = \pm\sqrt{25} = \pm 5 || 5, -5
4 years old || 4
She made a profit of 12 dollars || 12
The train leaves after 12 minutes || 12
It takes about 12 minutes || 12
In one week she sold 72 clips || 72
There are 4 apples left in the basket || 4
\sum_{k=1}^n k || \sum_{i=1}^n i
x^2+2x+1 || x^2+2x+1 || Expand $(x+1)^2$.
1+2x+x^2 || x^2+2x+1 || Expand $(x+1)^2$.
C. 12 || C
x_1=3, x_2=3 || 3
x=1 \text{ and } y=2 || (1,2)
m+n = 31 || 31 || Let p=m/n. Find $m+n$.
a+b+c = 31 || 31 || Find $a+b+c$.
x_1 + x_2 = 5 || 5 || What is $x_1+x_2$?
m+n = 12+19 = 31 || 31 || Find $m+n$.
\sin A = 1/3 || 1/3 || Find $\sin A$.
\log_2 x = 31 || 31 || Find $\log_2 x$ if it is so.
x^2+y^2 = 4 || 4 || If $x+y=3$, find $x^2+y^2$.
a - b = 4 || 4 || What is $a-b$?
AB + CD = 5 || 5 || Compute $AB+CD$.
f(g(3)) = 5 || 5 || Compute $f(g(3))$.
f(3)+g(2) = 5 || 5 || Compute $f(3)+g(2)$.
100m+n = 31 || 31 || Find $100m+n$.
\angle A + \angle B = 31^\circ || 31 || Find $\angle A + \angle B$.
(x+1)^2 = x^2+2x+1 || x^2+2x+1 || Expand $(x+1)^2$.
(3x+2)-(x-1) = 2x+3 || 2x+3
\frac{x^2-1}{x-1} = x+1 || x+1
120 sq ft || 120
120 sq. ft. || 120
4 sq cm || 4
4 cu ft || 4
20 sq units || 20
525π cm² || 525\pi
525\pi cm || 525\pi
525 \pi square units || 525\pi
\frac{4}{3}\pi abc || \frac{4\pi abc}{3}
4 \pmod 5 || 4
x \equiv 4 \pmod 5 || 4
x \equiv 4 (\text{mod } 5) || 4
x \equiv 4 \mod 5 || 4
x \equiv 4 \bmod 5 || 4
[1,2) \cup \emptyset || [1,2)
a circle || \text{circle}
a parabola || \text{parabola}
a line || line
x=4, x=-2\pm3i || 4, -2 + 3i, -2 - 3i
\{(1,2)\} || (1,2)
\text{infinity} || \infty
{6 \over 5} || 6/5
\lbrace 1, 2 \rbrace || \{1,2\}
\Rightarrow 4 || 4
<answer>**Answer:** 31</answer> || 31
£12 || 12 || Tea costs £3. How many pounds do 4 teas cost?
£12 || 12 || He earns 3 pounds an hour. How many pounds does he earn in 4 hours?
12 pounds || 12 || Tea costs £3. How many pounds do 4 teas cost?
30 mpg || 30 || A car uses 5 gallons of fuel for 150 miles. How many miles does it travel per gallon?
30 miles || 30 || A car uses 5 gallons of fuel for 150 miles. How many miles does it travel per gallon?
30 miles per gallon || 30 || A car uses 5 gallons of fuel for 150 miles. How many miles does it travel per gallon?
x^2 = 7.2 || 7.2 || What is $x^2$?
AC^2 = 7 || 7 || Find $AC^2$.
AB || AB || Let $A$ and $B$ be matrices. Which matrix is the product?
2A+B || B+2A || Let $A$ and $B$ be matrices. What is it?
\frac{5}{11} || 0.\overline{45} || What is it?
0.454545... || 0.\overline{45} || What is it?
25% || 25 || What percent of 80 is 20?
25 percent || 25 || What percent of 80 is 20?
Petya || Petya will receive the last token. || Then Petya and Vasya play. Who will get the last?
b, a, c || b < a < c || What is the order from smallest to largest?
b < a < c || b, a, c || What is the order from smallest to largest?
(0,1) || [0,1] || What is the monotonically increasing interval?
(3t,5t) || (3x,5x) || Find the pairs.
x^2 || y-x^2=0 || Find the equation.
118 || 117.95 || Approximately what percent is it?
all real numbers greater than or equal to 3 || [3,\infty) || What is the domain?
real numbers less than 3 || (-\infty,3) || What is the domain?
a=1, b=5 or a=5, b=1 || (1,5),(5,1) || Find all ordered pairs $(a,b)$ of positive integers.
w=16, d=3 || 16,3 || Find the values of $w$ and $d$, respectively.
AC || A, C || Which of these? (A) 1 (B) 2 (C) 3
①③ || ①, ③ || Which are right?
(1)(3) || ①③ || Which are right?
\text{Yes} || \text{Yes, it is possible.} || Is it possible?
a_n=2n-1 || a_{n}=2 n-1\left(n \in \mathbf{N}^{*}\right) || What is the general term?
"""


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=1, timeout_s=20) as one:
        yield one


@pytest.mark.parametrize(
    ("verdict", "case"),
    [
        (verdict, line)
        for verdict, table in (
            (Verdict.INCORRECT, INCORRECT),
            (Verdict.CORRECT, CORRECT),
            (Verdict.UNSIMPLIFIED, UNSIMPLIFIED),
        )
        for line in table.strip().splitlines()
    ],
)
def test_verdict(verifier: Verifier, verdict: Verdict, case: str) -> None:
    prediction, gold, *problem = case.split(" || ")
    assert verifier.verify(prediction, gold, problem=problem[0] if problem else None) is verdict


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("#### Final Answer\nThe answer is 4.", "4"),
        ("#### Step 2: 7\nThe answer is 4", "4"),
        ("#### Result\nwe get 7", "7"),
        ("so 5\n#### 42", "42"),
        ("#### 42\n", "42"),
        ("text\n#### Monday", "Monday"),
        (r"<answer>\boxed{60}\%</answer>", r"60\%"),
        ("The answer is not 4.", "not 4"),
        ("The answer is between 3 and 4.", "between 3 and 4"),
        ("The solutions are $x = 4$ and $x = 5$.", "$x = 4$ and $x = 5$"),
    ],
)
def test_lenient_extraction(completion: str, answer: str) -> None:
    assert extract_answer(completion, "lenient") == answer
