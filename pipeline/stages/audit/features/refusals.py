"""Refusals, recognized by how an answer begins, in the main languages of prompts.

Measured by `benchmarks/audit_refusals.py` on `tests/data/refusals_labelled.jsonl`.
"""

import re
import unicodedata

_OPENING = 240
"""Characters of an answer in which a refusal begins."""
_DECORATION = re.compile(r"[*_#>`~\u200b\ufeff\u2060]+")
_LEADING = " -\u2013\u2014\u2022.\u2026!?()[]"
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\u00b4\uff07\u2032`", "'"))

_VERB = (
    r"(?:help(?! but\b)|assist|provide|do (?:that|this|so|it\b)|answer|comply|fulfil|fulfill|generate|create|write|share|give|"
    r"support|engage|discuss|participate|offer|complete|process|continue|proceed|produce|respond|tell you|teach|"
    r"explain how|show you|describe how|facilitate|satisfy|grant|accommodate|go along|be part|carry out|translate this|"
    r"advise|guide you|walk you|speak to that|talk about|role-?play|draft|make that|make this|instruct|"
    r"supply|reveal|disclose|aid|cooperate|honou?r|act on|take part|express|let you|be able to)"
)
_SOFT = (
    r"(?: (?:really|simply|just|therefore|also|currently|ethically|legally|in good conscience|at this time|and won't|"
    r"or won't|and will not|or will not|personally|directly|actually|safely|possibly))*"
)
_EXACT = (
    r"(?! (?:(?:you|me)(?: with)? )?(?:an? |the )?(?:exact|precise|definitive|better|enough|single|more specific|"
    r"guarantee|real[- ]time|good enough|firm|complete picture|full))"
)
_CANNOT = (
    r"(?:can't|cannot|can not|cant|won't|will not|am unable to|'m unable to|am not able to|'m not able to|"
    r"must decline to|have to decline to|am not allowed to|'m not allowed to|am not permitted to|'m not permitted to|"
    r"am not going to|'m not going to|refuse to|'m not in a position to|am not in a position to|'d rather not|"
    r"would rather not|'m prohibited from|am prohibited from|could not possibly|wouldn't be able to|"
    r"am not authorized to|'m not authorized to|'m forbidden to|have been instructed not to)"
)
_SORRY = (
    r"(?:(?:i'?m|i am|we're|we are) (?:\w+ )?sorry|sorry|(?:my )?apolog(?:ies|ize|ise)|i (?:do |must |sincerely )?"
    r"apologi[sz]e|unfortunately|regrettably|i regret(?: to say)?|i'?m afraid|i am afraid|no|thank you|thanks|"
    r"i understand|i appreciate|i hear you|i see|as an? (?:\w+[- ])*(?:ai|assistant|model)|given|due to|because|while|"
    r"out of|for (?:safety|legal|ethical)|to be (?:clear|honest)|that(?:'s| is| sounds)|this(?:'s| is| request|"
    r" sounds)|well|hi|hello|hey|oh)"
)
_ENGLISH = (
    rf"(?:{_SORRY}\b[^.!?\n]{{0,120}}?[,.!?;:\u2014-]*(?: but| and| that| so| however,?)? ?){{0,3}}"
    rf"(?:i|we) ?{_CANNOT}{_SOFT} ?(?:be )?{_VERB}\w*\b{_EXACT}"
)
_ENGLISH_FORMS = (
    r"(?:(?:i'?m|i am) (?:\w+ )?sorry,? (?:but )?)?(?:(?:i|we) (?:must|have to|need to|will have to|'ll have to|"
    r"respectfully|politely) (?:respectfully |politely )?(?:decline\b|refuse(?:[.,!]| (?:to|this|that|your)\b)|pass(?: on (?:this|that))?[.,])|i'm going to have to (?:decline|pass))",
    r"(?:i'?m|i am) (?:\w+ )?sorry,? (?:but )?(?:i'?m|i am) not (?:able|allowed|permitted|going)\b",
    r"(?:(?:i'?m|i am) (?:\w+ )?sorry,? (?:but )?|sorry,? (?:but )?|unfortunately,? )?(?:that|this|it)(?:'s| is) "
    r"(?:not )?(?:something|a request|a topic|content) (?:that )?(?:i|we) (?:can't|cannot|won't|am not|'m not|can)"
    r" ?(?:able to |willing to )?(?:help|assist|provide|discuss|do|fulfil|fulfill|support|engage|offer|create)",
    r"(?:i|we) decline\b",
    r"(?:(?:i'?m|i am) (?:\w+ )?sorry,? (?:but )?)?(?:i (?:do not|don't) feel|i'm not|i am not) comfortable (?:with )?\w+ing\b",
    r"there's no way i can (?:help|assist|do)\b",
    r"(?:sorry,? (?:but )?)?(?:(?:your|this|that) request (?:violates|goes against|conflicts with|is against|"
    r"cannot be|can't be) )",
    r"(?:it (?:would be|is|'s) (?:against|in violation of) (?:my|our) (?:guidelines|policy|policies|programming|rules))",
    r"(?:sorry,? (?:but )?)?(?:no can do|i'?ll have to (?:decline|pass)|not something i can (?:help|assist))",
    r"(?:sorry,? (?:but )?)?(?:this|that) (?:falls|is) (?:outside|beyond) (?:of )?(?:what i(?:'m| am| can)|my guidelines|"
    r"what i'm able)",
    r"(?:my|our) (?:guidelines|policies|policy|safety guidelines|programming) (?:do not|don't|doesn't|prevents?|"
    r"prohibits?|forbids?) ",
)
_OTHERS = (
    # Chinese
    r"(?:(?:(?:很|非常|十分|实在|真的)?(?:抱歉|對不起|对不起|不好意思|遗憾|遺憾)|(?:作为|作為)[^。！\n]{0,30}|谢谢[^。！\n]{0,20}|"
    r"我理解[^。！\n]{0,30}|您好|你好|根据[^。！\n]{0,30}|这个(?:问题|请求)|该请求)"
    r"[，,。！!:： 、]*(?:但是|但|不过|因此|所以)?[，, ]*){0,2}"
    r"(?:我|我们|本人|本助手)?(?:恐怕|目前|暂时|现在|必须|只能|也|实在)?"
    r"(?:无法(?!否认|想象|忘记|不|用一|用言|理解你为|保证|精确|准确|给出确切)|不能(?!不|说|否认|完全|保证|简单|只|再|一概)|無法(?!否認)|"
    r"不会(?=(?:提供|帮|协助|参与|生成|编写|回答))|拒绝(?=(?:这|该|您|你|回答|提供|执行))|不便|没(?:有)?办法|沒(?:有)?辦法|不方便|不可以|不被允许)"
    r"(?:为您|为你|給您|给您|给你|向您|向你|帮您|帮你|對此|对此|就此|继续|直接|在这方面|以任何方式)*"
    r"(?:提供|协助|協助|帮助|幫助|帮忙|完成|回答|满足|滿足|生成|编写|撰写|撰寫|参与|參與|讨论|討論|处理|处理|執行|执行|给出|给|創作|创作|回应|回應|"
    r"透露|翻译这|支持|做到|帮|協|答应|配合|按照|教|说明如何|解答|这样做|這樣做|扮演|分享|写|寫|这个|该|您的|你的|就此|建议)",
    r"(?:很|非常|十分)?(?:抱歉|对不起|對不起)[，, ]*(?:这|這|该|您的|你的)[^。\n]{0,20}(?:不符合|违反|違反|超出)",
    # Japanese
    r"(?:(?:大変)?(?:申し訳(?:ありません|ございません|ないのですが)|すみません|ごめんなさい|恐れ入りますが|恐縮ですが|残念ながら)(?:が|、|。|けど| )*)"
    r"[^。\n]{0,80}(?:できません|できかねます|いたしかねます|お答えでき|お手伝いでき|応じられません|致しかねます|お断り|出来ません|控え|応じることは)",
    r"[^。\n]{0,60}(?:お手伝いできません|お答えできません|応じることはできません|提供できません|お断り(?:し|いた)|お手伝いすることはできません|"
    r"提供することはできません|お答えすることはできません)",
    # Korean
    r"(?:죄송(?:합니다|하지만|하게도|해요)?|미안(?:합니다|하지만|해요)?|유감(?:이지만|스럽게도)|안타깝지만)(?:만)?[,. ]*[^.\n]{0,80}"
    r"(?:수 없(?:습니다|어요|네요)|어렵습니다|드릴 수 없|않습니다|못합니다|거절|불가능합니다)",
    r"[^.\n]{0,50}(?:도와드릴 수 없|제공할 수 없|제공해 드릴 수 없|답변할 수 없|답변드릴 수 없|응할 수 없|도움을 드릴 수 없)",
    # Spanish
    r"(?:(?:lo siento|lo lamento|disculpa|disculpe|perd[oó]n|me temo|lamentablemente|desafortunadamente|gracias|"
    r"entiendo|como (?:una? )?(?:ia|modelo|asistente))\b[^.!?\n]{0,60}?[,.;:]* ?(?:pero|que|y)? ?){0,2}"
    r"(?:no (?:te |le |les |os )?(?:puedo|podemos|podr[ée]|voy a|me es posible|estoy (?:autorizado|en condiciones)|soy capaz|"
    r"me siento c[oó]mod[oa])(?: a| para| de)? ?(?:continuar|ayudar|asistir|proporcionar|cumplir|dar|responder|generar|crear|"
    r"escribir|participar|ofrecer|facilitar|hacer (?:eso|esto)|hacerlo|hablar|compartir|colaborar|apoyar|contestar|atender|"
    r"brindar)\w*|debo (?:rechazar|negarme|declinar))",
    # French
    r"(?:(?:(?:je suis |je suis vraiment |vraiment )?d[ée]sol[ée]e?|pardon|excusez|malheureusement|je regrette|merci|"
    r"je comprends|en tant qu)[^.!?\n]{0,60}?[,.;:]* ?(?:mais|que)? ?){0,2}"
    r"(?:je (?:ne (?:peux|puis|vais|pourrai|suis)|peux)(?: malheureusement)?(?: pas)?(?: (?:en mesure|autoris[ée]e?) (?:de|d'|"
    r"à))? ?(?:vous |t'|te |y |pas )?(?:aider|r[ée]pondre|fournir|donner|assister|accomplir|faire (?:cela|ça)|g[ée]n[ée]rer|cr[ée]er|"
    r"[ée]crire|participer|satisfaire|proposer|partager|acc[ée]der|effectuer|continuer|discuter|expliquer comment|"
    r"le faire)\w*(?! (?:de )?(?:chiffre exact))|je (?:dois|me vois contraint de) (?:refuser|d[ée]cliner)|je refuse)",
    # German
    r"(?:(?:(?:es )?tut mir (?:\w+ )?leid|entschuldigung|entschuldige|leider|ich bedaure|ich bedauere|verzeihung|danke|"
    r"ich verstehe|als (?:ki|sprachmodell|assistent)\S*)\b[^.!?\n]{0,60}?[,.;:–-]* ?(?:aber|dass|doch)? ?){0,2}"
    r"(?:(?:ich|wir|dabei|das|damit|hierbei|dazu|darauf|diese\w*|solche\w*)\b[^.!?\n]{0,40}?|)"
    r"(?:kann|darf|werde|möchte|muss|können) (?:ich |wir )?[^.!?\n]{0,60}?(?:nicht|keine\w*|ablehnen)\b[^.!?\n]{0,60}?"
    r"(?:helfen|weiterhelfen|unterstützen|beantworten|bereitstellen|geben|erstellen|schreiben|tun|nachkommen|liefern|behilflich|"
    r"erfüllen|mitwirken|anbieten|ablehnen|verfassen|beitragen|erklären, wie|dienen)(?=[.,!?\n;: ]|$)(?! (?:genaue))",
    r"(?:leider |es tut mir leid, aber )?(?:ich )?muss (?:ich )?(?:diese|deine|ihre|die) (?:anfrage|bitte) ablehnen",
    # Portuguese
    r"(?:(?:(?:me )?desculpe|desculpa|sinto muito|lamento|infelizmente|obrigad[oa]|entendo|perd[ãa]o|como (?:uma? )?(?:ia|"
    r"modelo|assistente))\b[^.!?\n]{0,60}?[,.;:]* ?(?:mas|que|por[ée]m)? ?){0,2}"
    r"(?:(?:eu )?n[ãa]o (?:te |lhe |vou |me )?(?:posso|podemos|poderei|vou|consigo|sou capaz de|estou autorizad[oa] a|sinto)"
    r"(?: te| lhe)? ?(?:poder )?(?:ajudar|auxiliar|fornecer|dar|responder|criar|gerar|escrever|atender|participar|fazer (?:isso|"
    r"isto)|oferecer|ajud[aá]-l[oa]|compartilhar|cumprir|discutir|colaborar|prosseguir)\w*|(?:preciso|devo|tenho que) recusar)",
    # Italian
    r"(?:(?:mi dispiace|spiacente|sono spiacente|scusa|scusi|purtroppo|grazie|capisco|come (?:ia|assistente|modello))\b"
    r"[^.!?\n]{0,60}?[,.;:]* ?(?:ma|che|però)? ?){0,2}"
    r"(?:non (?:ti |la |vi )?(?:posso|possiamo|potr[òo]|sono in grado di|sono autorizzat[oa] a|mi è possibile) ?"
    r"(?:aiutar|assister|fornir|rispond|scriver|crear|generar|soddisf|partecip|dar|far(?:e|lo)|offrir|condivid|discut|"
    r"esaudir|procedere|proseguire)\w*|devo (?:rifiutare|declinare))",
    # Russian
    r"(?:(?:извини(?:те)?|прости(?:те)?|к сожалению|сожалею|мне (?:очень )?жаль|приношу извинения|спасибо|я понимаю|"
    r"как (?:ии|языковая|искусственный|ассистент))\b[^.!?\n]{0,60}?[,.;:—-]* ?(?:но|что)? ?){0,2}"
    r"(?:я |мы )?(?:(?:не (?:могу|можем|смогу|буду|имею права|вправе|в состоянии|готов[а]?)) ?(?:вам |тебе |вас |с этим |"
    r"в этом |на это )*(?:помо[чг]|предостав|ответ|выполн|созда|напис|писать|сдела|участв|предлож|обсужд|дать|давать|продолж|"
    r"поддерж|содейств|объясн(?:ить|ять),? как|это (?:сделать|выполн)|этого)\w*|(?:вынужден|вынуждена|должен|должна) "
    r"отказать\w*|отказываюсь)",
    # Arabic
    r"(?:(?:عذرا|عذرًا|عذراً|آسف|أنا آسف|أعتذر|نعتذر|للأسف|معذرة|شكرا)[^.\n]{0,50}?[،,. ]*(?:لكن|ولكن|لكنني|ولكنني)? ?){0,2}"
    r"(?:أنا )?(?:لا (?:أستطيع|يمكنني|أقدر|نستطيع|يمكننا)|لن (?:أستطيع|أتمكن|أقوم|يمكنني)|لست قادر)[^.\n]{0,20}"
    r"(?:مساعد|تقديم|الإجابة|إجابة|تلبية|توفير|كتابة|إنشاء|المشاركة|القيام|الرد|تنفيذ|شرح|إعطا|مشارك)",
    # Hindi
    r"(?:(?:क्षमा करें|माफ़ करें|माफ करें|मुझे खेद है|मुझे माफ़|मुझे माफ|खेद है|मैं क्षमा)[^।\n]{0,20}?[,। ]*(?:लेकिन|परंतु|कि|पर)? ?){0,2}"
    r"मैं [^।\n]{0,60}(?:नहीं कर सकत|नहीं दे सकत|नहीं बता सकत|असमर्थ|नहीं लिख सकत|मदद नहीं)",
    # Vietnamese, Indonesian, Turkish, Polish, Dutch
    r"(?:(?:xin lỗi|rất tiếc|tôi (?:rất )?(?:xin lỗi|tiếc))[^.\n]{0,40}?[,. ]*(?:nhưng)? ?){0,2}tôi (?:không thể|không được phép|xin từ chối|"
    r"phải từ chối) ?(?:giúp|hỗ trợ|cung cấp|trả lời|thực hiện|tạo|viết|đáp ứng|tham gia)?",
    r"(?:(?:maaf|mohon maaf)[^.\n]{0,30}?[,. ]*(?:tetapi|tapi|namun)? ?){1,2}(?:saya|kami) (?:tidak (?:bisa|dapat)|tidak boleh) ?"
    r"(?:membantu|memberikan|menjawab|memenuhi|membuat|menulis|melakukan|menyediakan)",
    r"(?:üzgünüm|özür dilerim|maalesef|kusura bakma\w*)[^.\n]{0,80}(?:yardımcı olamam|yardım edemem|sağlayamam|yapamam|veremem|yanıtlayamam|"
    r"yerine getiremem|cevap veremem|yazamam|paylaşamam|olamıyorum|edemiyorum|veremiyorum)",
    r"(?:(?:przepraszam|przykro mi|niestety)[^.\n]{0,30}?[,. ]*(?:ale)? ?){0,2}nie (?:mogę|jestem w stanie|będę) ?(?:ci |panu |pani |w tym |z tym )*"
    r"(?:pomóc|pomagać|udzielić|podać|odpowiedzieć|spełnić|napisać|stworzyć|dostarczyć|uczestniczyć|tego zrobić)",
    r"(?:(?:het spijt me|sorry|helaas|excuses)[^.\n]{0,40}?[,. ]*(?:maar)? ?){0,2}(?:(?:daar|hier)(?:mee|bij)? )?(?:ik kan|kan ik|ik mag|mag ik) (?:u |je |jou )?"
    r"(?:(?:daar|hier)(?:mee|bij)? |met (?:dit|dat|deze) [^.\n]{0,30})?(?:helaas )?(?:niet|geen)\b[^.\n]{0,50}(?:helpen|geven|verstrekken|beantwoorden|uitvoeren|"
    r"voldoen|schrijven|bieden|doen)",
)


def _compiled(forms: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{form})" for form in forms))


_LATIN = (_ENGLISH, *_ENGLISH_FORMS, *(form for form in _OTHERS if re.search("[a-z]{4}", form)))
_IN_LATIN_SCRIPT, _IN_ANY_SCRIPT = _compiled(_LATIN), _compiled((_ENGLISH, *_ENGLISH_FORMS, *_OTHERS))


def plain_opening(text: str) -> str:
    """Return the beginning of an answer in lower case and NFKC, with plain apostrophes and without decoration."""
    start = text.lstrip()[:_OPENING]
    if not start.isascii():
        start = unicodedata.normalize("NFKC", start.translate(_APOSTROPHES)).translate(_APOSTROPHES)
    return " ".join(_DECORATION.sub("", start.casefold()).split()).lstrip(_LEADING)


def is_refusal(opening: str) -> bool:
    """Return whether the beginning of an answer, as `plain_opening` returns it, refuses what is asked."""
    return (_IN_LATIN_SCRIPT if opening.isascii() else _IN_ANY_SCRIPT).match(opening) is not None
